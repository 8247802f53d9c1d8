"""Jobs whose engine syncrun starts (syncrun --launcher)."""

import engines
import hosts

REMOTE_SHELL = str(hosts.HERE / "remote_shell.py")
MPICH = {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": REMOTE_SHELL, "HYDRA_IFACE": "eth0"}


class Launcher:
    """Puts the options of --launcher into the command line of syncrun. The rest is as an engine of engines.py."""

    process = "no engine of its own"
    engine_process: str  # what the command line of the engine begins with

    def __init__(self, word, *options, tools, has_hosts=True, variables=None):
        self.word = word
        self.name = f"--launcher {word} {' '.join(options)}".strip()
        self.options = options
        self.tools = tools
        self.has_hosts = has_hosts
        self.variables = variables or {}
        self.engine_process = "mpirun" if word == "ssh" else word

    def command(self, test_hosts, nodes, program, spares=0):
        names = ["--hosts", ",".join(test_hosts.names[: nodes + spares])] if self.has_hosts else []
        return ["env", *(f"{name}={value}" for name, value in self.variables.items()), program[0], "--launcher", self.word,
                "--nodes", str(nodes), *names, *self.options, *program[1:]]  # fmt: skip


# A node of the Slurm of these tests has two cores.
SRUN = engines.Srun.tools
LAUNCHERS = {
    "openmpi": Launcher("mpirun.openmpi", tools=("mpirun.openmpi",)),
    "mpich": Launcher("mpirun.mpich", tools=("mpirun.mpich",), variables=MPICH),
    "ssh": Launcher("ssh", tools=("mpirun.openmpi",)),
    "srun": Launcher("srun", "--launcher-args", "--cpus-per-task=1", tools=SRUN, has_hosts=False),
    "srun pmi2": Launcher("srun", "--launcher-args", "--cpus-per-task=1 --mpi=pmi2", tools=SRUN, has_hosts=False),
}

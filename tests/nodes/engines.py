"""The engines that start a program on the hosts of hosts.py: the mpirun of Open MPI and of MPICH, and srun."""

import os
import shutil
import subprocess
import time

from hosts import HERE, NETWORK, HostsError

MUNGE_KEY_BYTES = 1024
SLURM_LIMIT_S = 90


def why_impossible(*tools):
    """Why these tools cannot be used. None if they can."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return "not installed: " + ", ".join(missing) if missing else None


class OpenMpi:
    name = "mpirun (Open MPI)"
    tools = ("mpirun.openmpi",)
    process = "mpirun.openmpi -quiet"

    @classmethod
    def command(cls, hosts, nodes, program):
        names = ",".join(f"{name}:1" for name in hosts.names[:nodes])
        return ["mpirun.openmpi", "-quiet", "--host", names, "--map-by", "node", "--bind-to", "none",
                "-np", str(nodes), *program]  # fmt: skip


class OpenMpiInSlurm(OpenMpi):
    """In an allocation: Slurm's srun starts the tasks of the other hosts, but not those of the first."""

    tools = ("mpirun.openmpi", "salloc")

    @classmethod
    def command(cls, hosts, nodes, program):
        del hosts
        return ["salloc", "-Q", f"-N{nodes}", "--ntasks-per-node=1", "mpirun.openmpi", "-quiet", "--map-by", "ppr:1:node",
                "--bind-to", "none", "-np", str(nodes), *program]  # fmt: skip


class TalkativeOpenMpi(OpenMpi):
    """With its own messages about processes that end."""

    @classmethod
    def command(cls, hosts, nodes, program):
        return [word for word in super().command(hosts, nodes, program) if word != "-quiet"]


class Mpich:
    name = "mpirun (MPICH)"
    tools = ("mpirun.mpich",)
    process = "mpirun.mpich"

    @staticmethod
    def command(hosts, nodes, program):
        names = ",".join(f"{name}:1" for name in hosts.names[:nodes])
        return ["mpirun.mpich", "-hosts", names, "-ppn", "1", "-launcher", "rsh", "-launcher-exec",
                str(HERE / "remote_shell.py"), "-bind-to", "none", "-iface", "eth0", "-np", str(nodes),
                *program]  # fmt: skip


class Srun:
    tools = ("srun", "slurmctld", "slurmd", "munged")
    process = "srun"

    def __init__(self, mpi):
        self.mpi = mpi
        self.name = f"srun --mpi={mpi}"

    def command(self, hosts, nodes, program):
        del hosts
        return ["srun", f"--mpi={self.mpi}", f"-N{nodes}", "--ntasks-per-node=1", "--overcommit", *program]


ENGINES = {"openmpi": OpenMpi(), "mpich": Mpich(), "pmix": Srun("pmix"), "pmi2": Srun("pmi2")}
OTHERS = {"talkative": TalkativeOpenMpi(), "openmpi in slurm": OpenMpiInSlurm()}


class Slurm:
    """A Slurm of its own: a controller on n1, and a daemon on each host. It ends with the hosts."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.folder = hosts.folder / "slurm"
        hosts.variables["SLURM_CONF"] = str(self.folder / "slurm.conf")
        for name in ("state", "log", *(f"spool.{host}" for host in hosts.names)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "slurm.conf").write_text(self._configuration())
        self._start_munge()
        self._start("n1", ["slurmctld", "-D", "-c"])
        for host in hosts.names:
            self._start(host, ["slurmd", "-D", "-N", host])
        self._await_idle()

    def _start(self, host, command):
        with (self.folder / "log" / f"{command[0]}.{host}.out").open("w") as log:
            self.hosts.processes.append(
                self.hosts.start(host, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def _start_munge(self):
        """One daemon serves all hosts, because its socket is in a folder that they share."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(MUNGE_KEY_BYTES))
        key.chmod(0o600)
        files = {"key-file": key, "socket": self.folder / "munge.sock", "pid-file": self.folder / "munge.pid",
                 "seed-file": self.folder / "munge.seed", "log-file": self.folder / "munge.log"}  # fmt: skip
        options = [f"--{option}={path}" for option, path in files.items()]
        self._start("n1", ["munged", "--force", "--foreground", *options])
        limit = time.monotonic() + SLURM_LIMIT_S
        while not files["socket"].exists():
            if time.monotonic() > limit:
                raise HostsError("munge did not start")
            time.sleep(0.02)

    def _await_idle(self):
        limit = time.monotonic() + SLURM_LIMIT_S
        wanted = f"{len(self.hosts.names)}:idle"
        state = ""
        while state != wanted:
            if time.monotonic() > limit:
                raise HostsError(f"Slurm did not start: expected {wanted}, found {state!r}")
            time.sleep(0.1)
            state = self.hosts.run("n1", ["sinfo", "-h", "-o", "%D:%T"]).stdout.strip()

    def _configuration(self):
        nodes = [
            f"NodeName={host} NodeHostname={host} NodeAddr={NETWORK}.{number} CPUs=2 Boards=1 SocketsPerBoard=1 "
            "CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"
            for number, host in enumerate(self.hosts.names, 1)
        ]
        folder = self.folder
        lines = [
            "ClusterName=test",
            f"SlurmctldHost=n1({NETWORK}.1)",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.sock,cred_expire=5",  # a requeued job waits as long
            "CryptoType=crypto/munge",
            "MpiDefault=none",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SchedulerType=sched/builtin",
            "SchedulerParameters=sched_interval=1",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "ReturnToService=2",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd.%n.pid",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool.%n",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd.%n.log",
            "KillWait=5",
            "UnkillableStepTimeout=10",
            "MessageTimeout=10",
            *nodes,
            f"PartitionName=main Nodes={','.join(self.hosts.names)} Default=YES MaxTime=INFINITE State=UP "
            "OverSubscribe=FORCE:4 PriorityTier=1 GraceTime=60",
            f"PartitionName=urgent Nodes={','.join(self.hosts.names)} State=UP OverSubscribe=EXCLUSIVE PriorityTier=2",
        ]
        return "\n".join([*lines, ""])

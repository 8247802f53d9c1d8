"""Several hosts on one machine, for tests.

Each host has namespaces of its own for the network, the host name, processes, mounts and shared memory: its own /tmp,
/dev/shm, /proc and /etc/hosts. A bridge in a further namespace connects them. The hosts are processes, and no namespace
has a name. So nothing is left when this process ends, also if it is killed.

    with Hosts(3, keep=[build_folder]) as hosts:
        hosts.run("n1", ["hostname"])

Needs root, iproute2 and util-linux.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NETWORK = "10.77.0"
START_LIMIT_S = 90

PR_SET_PDEATHSIG = 1
BPF_RANDOM = 2**32 - 0x1000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h: loads a random number


class HostsError(RuntimeError):
    pass


def why_impossible():
    """Why this machine cannot have hosts. None if it can."""
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return "not installed: " + ", ".join(missing)
    probe = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else "no namespaces here: " + done.stderr.strip()


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def variables_of(pid):
    """The variables with which a process has started. Empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return {}
    return dict(variable.split("=", 1) for variable in text.split("\0") if "=" in variable)


def rank_of(pid):
    """The rank of a worker process. None if it is no worker, or is gone."""
    rank = variables_of(pid).get("RANK")
    return None if rank is None else int(rank)


def children_of(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class Hosts:
    """Hosts n1, n2, ... `keep` are folders that all hosts share with this machine, also if they are in /tmp.

    After a job has failed, Open MPI waits for four seconds, even if no process is left. With `is_patient`, it does so, as for
    users. Otherwise, it does not wait, and kills what is left at once.
    """

    def __init__(self, count, keep=(), *, is_patient=False):
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self.folder = Path(tempfile.mkdtemp(prefix="syncrun-hosts-"))
        self.keep = [Path(folder).resolve() for folder in keep] + [HERE, self.folder]
        self.socket_path = self.folder / "shell"
        self.init = {}  # by host: the process number of its first process
        self.processes = []
        self.variables = {
            "SYNCRUN_TEST_HOSTS": str(self.socket_path),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl_tcp_if_include": f"{NETWORK}.0/24",
            "OMPI_MCA_oob_tcp_if_include": f"{NETWORK}.0/24",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_plm_rsh_agent": str(HERE / "remote_shell.py"),
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        }
        if not is_patient:
            self.variables["OMPI_MCA_odls_base_sigkill_timeout"] = "0"

    def __enter__(self):
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    # ---- up and down

    def _spawn(self, command):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent, start_new_session=True)  # fmt: skip
        self.processes.append(process)
        return process

    def _first_process(self, unshare):
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit:
            if children := children_of(unshare.pid):
                return children[0]
            if unshare.poll() is not None:
                break
            time.sleep(0.005)
        raise HostsError("a host did not start")

    def _up(self):
        switch = self._spawn(["unshare", "--net", "--fork", "--kill-child", "sleep", "infinity"])
        self.switch = self._first_process(switch)
        self._in_switch("ip link set lo up; ip link add br0 type bridge; ip link set br0 up")
        for name in self.names:
            self._make_host(name)
        for name in self.names:
            self._connect(name)
        self._serve()

    def _in_switch(self, script):
        self._check(["nsenter", "--target", str(self.switch), "--net", "sh", "-ec", script])

    @staticmethod
    def _check(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HostsError(f"{' '.join(command)}: {done.stderr.strip()}")

    def _make_host(self, name):
        own = self.folder / name
        temporary = own / "tmp"
        temporary.mkdir(parents=True)
        temporary.chmod(0o1777)
        addresses = [f"{NETWORK}.{number} {host}" for number, host in enumerate(self.names, 1)]
        (own / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        lines = [f"hostname {name}", "mount -t tmpfs tmpfs /dev/shm", f"mount --bind {own}/hosts /etc/hosts"]
        for folder in self.keep:
            if folder.is_relative_to("/tmp"):
                place = temporary / folder.relative_to("/tmp")
                place.mkdir(parents=True, exist_ok=True)
                lines.append(f"mount --bind {folder} {place}")
        lines += [f"mount --rbind {temporary} /tmp", "ip link set lo up", f"touch {own}/is_up"]
        # The first process of a host has to reap orphans. A shell that waits does.
        script = " && ".join(lines) + " && while :; do sleep 1000 & wait $!; done"
        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.init[name] = self._first_process(self._spawn([*unshare, "bash", "-c", script]))

    def _connect(self, name):
        number = self.names.index(name) + 1
        self._in_switch(
            f"ip link add v{number} type veth peer name eth0 netns {self.init[name]}; ip link set v{number} master br0 up"
        )
        limit = time.monotonic() + START_LIMIT_S
        while not (self.folder / name / "is_up").exists():
            if time.monotonic() > limit:
                raise HostsError(f"host {name} did not come up")
            time.sleep(0.005)
        self.run(name, ["ip", "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0"], check=True)
        self.run(name, ["ip", "link", "set", "eth0", "up"], check=True)

    def down(self):
        for process in self.processes:
            for child in children_of(process.pid):
                self.kill(child)
            process.kill()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    # ---- commands

    def command(self, host, command):
        """The command line that runs `command` (a list) on a host, in the present folder."""
        enter = ["nsenter", "--target", str(self.init[host]), "--net", "--uts", "--ipc", "--mount", "--pid"]
        return [*enter, "--", "sh", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *map(str, command)]

    def start(self, host, command, variables=None, **options):
        """Starts a command on a host and returns the process. The options are those of Popen."""
        environment = {**os.environ, **self.variables, **(variables or {})}
        return subprocess.Popen(self.command(host, command), env=environment, text=True, **options)

    def run(self, host, command, timeout=60, check=False, **options):
        """Runs a command on a host, and returns what it has done as subprocess.run does."""
        environment = {**os.environ, **self.variables}
        return subprocess.run(self.command(host, command), env=environment, text=True, timeout=timeout, check=check,
                              **{"capture_output": True, **options})  # fmt: skip

    # ---- faults

    def kill_host(self, name):
        """The host dies at once, with everything on it."""
        self.kill(self.init[name])

    def set_link(self, name, state):
        """Takes the link of a host "down" or "up"."""
        self._in_switch(f"ip link set v{self.names.index(name) + 1} {state}")

    def set_rate(self, name, direction, rate="160mbit"):
        """Makes the network of a host slow: what it gets ("in"), or what it sends ("out")."""
        slow = f"tc qdisc add dev {{}} root tbf rate {rate} burst 256kb latency 100ms"
        if direction == "in":
            self._in_switch(slow.format(f"v{self.names.index(name) + 1}"))
        else:
            self.run(name, slow.format("eth0").split(), check=True)

    def disturb(self, name, *, loss=0.0, delay=0.0, to=None, port=None):
        """Lets a host lose a part of the packets that it sends, or delays a part of them by up to seconds, which also changes
        their order. With `to`, it loses all packets to this host, or those from one of its own ports. A kernel needs no netem for this: a class for some packets
        has no room, or is slow."""
        is_random = f"bpf bytecode '4,32 0 0 {BPF_RANDOM},37 1 0 {{}},6 0 0 {2**32 - 1},6 0 0 0'"
        add = "tc filter add dev eth0 parent 1: protocol ip prio {} {} flowid 1:{}"
        lines = ["tc qdisc add dev eth0 root handle 1: htb default 1"]
        for number, rate in ((1, "10gbit"), (2, "10gbit"), (3, "400kbit")):
            lines.append(f"tc class add dev eth0 parent 1: classid 1:{number} htb rate {rate} quantum 60000")
        lines.append("tc qdisc add dev eth0 parent 1:2 bfifo limit 1")  # room for no packet
        if to:
            address = f"{NETWORK}.{self.names.index(to) + 1}"
            of_port = f" match ip sport {port} 0xffff" if port else ""
            lines.append(add.format(1, f"u32 match ip dst {address}/32{of_port}", 2))
        if loss:
            lines.append(add.format(2, is_random.format(int(loss * 2**32)), 2))
        if delay:
            lines.append(add.format(3, is_random.format(int(delay * 2**32)), 3))
        self.run(name, ["sh", "-ec", "\n".join(lines)], check=True)

    def calm(self, name):
        """Ends what disturb() does."""
        self.run(name, ["tc", "qdisc", "del", "dev", "eth0", "root"], check=False)

    def pids(self, host, text):
        """The processes on a host whose command line begins with a text, by their numbers outside of the host, oldest first."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                is_there = os.readlink(entry / "ns/pid") == os.readlink(f"/proc/{self.init[host]}/ns/pid")
                started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
            except OSError:
                continue
            if is_there and line.startswith(str(text)):
                found.append((started, int(entry.name)))
        # A younger process can have a smaller number: after the largest number, the kernel begins again with small ones.
        return [pid for _, pid in sorted(found)]

    # ---- the shell from host to host (remote_shell.py)

    def _serve(self):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(self.socket_path))
        server.listen(64)

        def accept():
            while True:
                caller, _ = server.accept()
                threading.Thread(target=self._serve_one, args=(caller,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _serve_one(self, caller):
        message, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
        request = json.loads(message)
        enter = self.command(request["host"], [])[:-1]
        process = subprocess.Popen(
            [*enter[: enter.index("--") + 1], "sh", "-c", f'cd "$0" 2>/dev/null; {request["command"]}', request["folder"]],
            stdin=streams[0], stdout=streams[1], stderr=streams[2], start_new_session=True,
            env={**os.environ, **self.variables})  # fmt: skip
        for stream in streams:
            os.close(stream)

        def end_with_caller():
            try:
                if not caller.recv(1) and process.poll() is None:
                    os.killpg(process.pid, signal.SIGHUP)
            except OSError:
                pass  # the command has ended meanwhile

        threading.Thread(target=end_with_caller, daemon=True).start()
        code = process.wait()
        try:
            caller.sendall(str(code).encode())
        except OSError:
            pass
        caller.close()

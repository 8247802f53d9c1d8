#!/usr/bin/env python3
"""campaign.py --syncrun FILE --program FILE --build FOLDER [--faults 20] [--seed N] [--seconds 100]: random faults in jobs
on three hosts, under all engines, with and without `syncrun --launcher`.

A fault kills, stops or terminates a process of the job, cuts or disturbs the network, or fills a disk. It comes while the
job starts, works, saves or ends. The program (steps.cpp) checks every number that it gets. After each fault, this script
checks that the job ends in time and with the right exit code, that a part that was not lost goes on, that the output names
the host and the cause, that the last checkpoint is whole, and that no process, file, socket or shared memory is left.

Without --seed, each run has a new seed. A fault depends only on the seed and on its number, and what failed is repeated by:

    campaign.py ... --seed SEED --only NUMBER
"""

import argparse
import collections
import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import engines
import hosts as hosts_module
import launchers
from engines import ENGINES, OTHERS, Slurm
from hosts import Hosts, rank_of

SKIP_CODE = 77
HANG_S = 30  # after the end of a fault, if the machine is not busy: then an engine has taken 36 s
READY_LIMIT_S = 60  # until the job has come to the moment of the fault; this machine may be busy
QUIET_S = 1  # without processes, until a job counts as over: the engine may still be about to start some
DISK_MIB = 40
STEPS_OF_SAVE = 12  # in steps.cpp
TIMEOUT_S, START_TIMEOUT_S = 8, 15
NEEDED = ("mpirun.openmpi", "mpirun.mpich", *engines.Srun.tools, "tc")
IN_NAMESPACE = "SYNCRUN_CAMPAIGN_IN_NAMESPACE"
DAEMONS = ("orted", "/usr/bin/orted", "hydra_pmi_proxy", "/usr/bin/hydra_pmi_proxy", "slurmstepd")

# Open MPI names a host that has died only if it is not told to be quiet.
STARTS = ["talkative", "mpich", "pmix", "pmi2"]
LAUNCHES = ["--launcher openmpi", "--launcher mpich", "--launcher srun", "--launcher srun pmi2"]
MOMENTS = {"start": None, "work": "the steps begin", "save": "saving", "end": "the end begins"}  # what steps.cpp says then
PROCESSES = ["worker", "agent", "master", "syncrun", "engine", "daemon"]
options = None


class Fault(NamedTuple):
    """`seconds` is how long the fault lasts. None: for good."""

    number: int
    start: str
    restarts: int
    moment: str
    delay: float
    what: str
    way: str
    host: str
    seconds: float | None

    def __str__(self):
        lasts = "" if self.seconds is None else f" for {self.seconds:.1f} s"
        restarts = f" --max-restarts {self.restarts}" if self.restarts else ""
        return (f"{self.number:3} {self.start}{restarts}, {self.what} {self.way} on {self.host}{lasts}, "
                f"{self.delay:.2f} s after {self.moment}")  # fmt: skip

    @property
    def kind(self):
        return f"{self.what} {self.way}"


def choose(seed, number):
    """Depends on nothing else, so that one fault can be repeated."""
    chance = random.Random(f"{seed}/{number}")
    start = chance.choice(STARTS + LAUNCHES)
    restarts = chance.choice([0, 1]) if start in LAUNCHES else 0
    moment = chance.choice(["start", "start", "work", "work", "save", "end"])
    delay = chance.uniform(0, {"start": 1.0, "work": 2.0, "save": 0.1, "end": 0.15}[moment])
    what = chance.choice([*PROCESSES, *PROCESSES, "link", "link", "network", "host", "disk", "disk"])
    host = chance.choice(["n1", "n2", "n3"])
    seconds = None
    if what in PROCESSES:
        way = chance.choice(["KILL", "KILL", "STOP", "TERM"])
        if way == "STOP":
            seconds = chance.choice([0.5, 2.0, 10.0])
        if what in ("master", "engine"):
            host = "n1"
        if what == "agent" or (what == "daemon" and start in ("talkative", "--launcher openmpi")):
            host = chance.choice(["n2", "n3"])  # on n1, mpirun of Open MPI is its own daemon
    elif what == "link":
        way = chance.choice(["down", "cut from another", "all down"])
        seconds = chance.choice([None, 0.5, 8.0])
    elif what == "network":
        way = chance.choice(["loses packets", "delays packets", "loses and delays packets"])
        seconds = chance.choice([2.0, 6.0])
    elif what == "host":
        way, host = "dies", chance.choice(["n2", "n3"])
    else:
        way = chance.choice(["full for checkpoints", "full for logs", "full for the output"])
    return Fault(number, start, restarts, moment, delay, what, way, host, seconds)


def engine_of(fault):
    if fault.start in LAUNCHES:
        return launchers.LAUNCHERS[fault.start.removeprefix("--launcher ")]
    return {**ENGINES, **OTHERS}[fault.start]


class Run:
    """One job, its fault and what is checked afterwards."""

    def __init__(self, fault, disks):
        self.fault = fault
        self.disk, self.files = disks  # small ones that all hosts share: for checkpoints, and for logs and the output
        self.lines = []
        self.struck_at = None
        self.ended_at = None  # the fault
        self.over_at = None  # the job
        self.rank = None  # of the worker that was struck
        self.found = []  # the processes to strike
        self.stopped = []
        self.findings = []
        self.waits = False  # for a host that is gone
        self.known = set()  # names of folders that the hosts share
        self.load = os.getloadavg()[0]

    # ---- the job

    def start(self, hosts):
        fault = self.fault
        self.hosts = hosts
        engine = engine_of(fault)
        self.engine_process = getattr(engine, "engine_process", engine.process.split()[0])
        more = ["--log-dir", str(self.files / "logs")] if fault.way == "full for logs" else []
        more += ["--max-restarts", str(fault.restarts)] if fault.restarts else []
        seconds = "1.5" if fault.moment == "end" else "12" if fault.seconds is not None else "8"
        command = [options.syncrun, "-n", "2", "--timeout", str(TIMEOUT_S), "--start-timeout", str(START_TIMEOUT_S), *more,
                   options.program, "steps", str(self.disk / "run"), seconds]  # fmt: skip
        command = engine.command(hosts, 3, command)
        output = subprocess.PIPE
        if fault.way == "full for the output":
            output = (self.files / "output").open("w")
        self.job = hosts.start("n1", command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                               start_new_session=True, errors="replace")  # fmt: skip
        self.readers = [threading.Thread(target=self.read, args=(stream,), daemon=True)
                        for stream in (self.job.stdout, self.job.stderr) if stream]  # fmt: skip
        for reader in self.readers:
            reader.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line)

    @property
    def text(self):
        return "".join(list(self.lines))

    def await_line(self, wanted):
        """Returns False if the job ends before."""
        end = time.monotonic() + READY_LIMIT_S
        while not any(wanted in line for line in list(self.lines)):
            if self.job.poll() is not None or time.monotonic() > end:
                self.findings.append(f"did not come to: {wanted}")
                return False
            time.sleep(0.002)
        return True

    def await_moment(self):
        """Returns False if the job ends before."""
        wanted = MOMENTS[self.fault.moment]
        if wanted is not None:
            if not self.await_line(MOMENTS["work"]):
                return False
            self.found = self.targets()  # a search takes longer than a save or an end
            if not self.await_line(wanted):
                return False
        time.sleep(self.fault.delay)
        return True

    # ---- the fault

    def targets(self):
        """The processes that a signal goes to. Those of a start may not be there yet."""
        fault, hosts = self.fault, self.hosts
        if fault.what not in PROCESSES:
            return []
        programs = hosts.pids(fault.host, options.program)
        ours = {
            "worker": lambda: [pid for pid in programs if rank_of(pid) is not None],
            "agent": lambda: programs[:1],
            "master": lambda: programs[:1],
            "syncrun": lambda: hosts.pids(fault.host, options.syncrun),
            "engine": lambda: hosts.pids("n1", self.engine_process),
            "daemon": lambda: [pid for name in DAEMONS for pid in hosts.pids(fault.host, name)],
        }[fault.what]()
        if fault.what == "syncrun" and fault.start in LAUNCHES and fault.host == "n1":
            return [random.Random(fault.number).choice(ours[:2])] if len(ours) > 1 else []
        if fault.what == "worker" and ours:
            pid = random.Random(fault.number).choice(ours)
            self.rank = rank_of(pid)
            return [pid]
        return ours[:1]

    def strike(self):
        """Returns whether there was something to strike."""
        fault, hosts = self.fault, self.hosts
        self.struck_at = time.monotonic()
        if fault.what in PROCESSES:
            end = time.monotonic() + READY_LIMIT_S
            while not (targets := self.found or self.targets()):
                if self.job.poll() is not None or fault.moment != "start" or time.monotonic() >= end:
                    return False
            self.struck_at = time.monotonic()
            try:
                for pid in targets:
                    os.kill(pid, signal.Signals["SIG" + fault.way])
            except ProcessLookupError:
                return False
            self.stopped = targets if fault.way == "STOP" else []
        elif fault.kind == "link down":
            hosts.set_link(fault.host, "down")
        elif fault.kind == "link all down":
            for host in hosts.names:
                hosts.set_link(host, "down")
        elif fault.kind == "link cut from another":
            hosts.disturb(fault.host, to=self.other())
            hosts.disturb(self.other(), to=fault.host)
        elif fault.what == "network":
            hosts.disturb(fault.host, loss=0.2 if "loses" in fault.way else 0, delay=0.2 if "delays" in fault.way else 0)
        elif fault.what == "host":
            hosts.kill_host(fault.host)
        elif fault.what == "disk":
            disk = self.disk if "checkpoints" in fault.way else self.files
            with (disk / "filler").open("wb", buffering=0) as filler:
                try:
                    while filler.write(bytes(4096)):
                        pass
                except OSError:
                    pass
        return True

    def other(self):
        """The other end of a link that is cut."""
        names = [name for name in self.hosts.names if name != self.fault.host]
        return random.Random(self.fault.number).choice(names)

    def end_fault(self):
        """Does nothing after a fault that is for good."""
        if self.fault.seconds is None:
            self.ended_at = self.struck_at
            return
        fault, hosts = self.fault, self.hosts
        # nsenter, which has brought the job to its host, stops with the process that it waits for.
        for pid in [*self.stopped, *([self.job.pid] if self.stopped else [])]:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        if fault.kind == "link down":
            hosts.set_link(fault.host, "up")
        elif fault.kind == "link all down":
            for host in hosts.names:
                hosts.set_link(host, "up")
        elif fault.kind == "link cut from another":
            hosts.calm(fault.host)
            hosts.calm(self.other())
        elif fault.what == "network":
            hosts.calm(fault.host)
        self.ended_at = time.monotonic()

    # ---- afterwards

    def left(self):
        """Processes of ours on the hosts that are alive."""
        dead = {self.fault.host} if self.fault.what == "host" and self.struck_at else set()
        return [(host, pid) for host in self.hosts.names if host not in dead
                for name in (options.syncrun, options.program) for pid in self.hosts.pids(host, name)]  # fmt: skip

    def await_end(self):
        """Follows the job to its end, and ends the fault in time."""
        # This loop may be slow if the machine is busy.
        timer = threading.Timer(self.fault.seconds or 0, self.end_fault)
        timer.start()
        quiet_since = None
        longest = 2 * HANG_S + float(self.own_seconds()) + TIMEOUT_S
        while True:
            now = time.monotonic()
            if self.left():
                quiet_since = None
            elif self.job.poll() is not None:
                break
            else:
                quiet_since = quiet_since or now
                # An engine may wait for a host that is gone.
                if self.ended_at is not None and now - quiet_since > QUIET_S and self.fault.start in STARTS:
                    break
            is_gone = self.fault.what in ("host", "link") and self.fault.seconds is None
            if is_gone and not self.waits and "queued and waiting for resources" in self.text:
                # A restart, for which Slurm needs the host that is gone. It could wait for ever.
                self.waits = True
                for pid in self.hosts.pids("n1", options.syncrun):
                    os.kill(pid, signal.SIGTERM)
            if now - (self.ended_at or self.struck_at + HANG_S) > longest:
                what = [f"{host} {name_of(pid)}" for host, pid in self.left()] or ["syncrun on n1 does not return"]
                self.findings.append(f"HANGS: {'; '.join(what)}")
                break
            time.sleep(0.05)
        self.over_at = time.monotonic()
        timer.cancel()
        timer.join()
        if self.ended_at is None:
            self.end_fault()

    def own_seconds(self):
        """How long the program itself may still work after the fault, if it goes on. A restart begins again."""
        starts = START_TIMEOUT_S if self.fault.moment == "start" or self.fault.restarts else 0
        return starts + (1 + self.fault.restarts) * (2 if self.fault.moment == "end" else 14)

    def check_files(self):
        """What is left in the memory and in the temporary folders of hosts. Engines leave their own files if they are killed."""
        for host in self.hosts.names:
            for folder in (self.hosts.folder / host / "tmp", Path(f"/proc/{self.hosts.init[host]}/root/dev/shm")):
                try:
                    found = [entry.name for entry in folder.iterdir()]
                except OSError:
                    continue  # the host is dead
                if ours := [name for name in found if "syncrun" in name and name not in self.known]:
                    self.findings.append(f"LEFT on {host}: {', '.join(ours)}")
            try:
                sockets = Path(f"/proc/{self.hosts.init[host]}/net/unix").read_text()
            except OSError:
                continue
            if "syncrun" in re.sub(rf"{re.escape(str(self.hosts.folder))}\S*", "", sockets):
                self.findings.append(f"LEFT on {host}: a socket")

    def check_checkpoint(self):
        """The last checkpoint is whole, also if a save was interrupted."""
        (self.disk / "filler").unlink(missing_ok=True)
        saves = self.lines.count("saved\n")
        if not saves and not (self.disk / "run" / "latest").exists():
            return
        done = subprocess.run([options.syncrun, "-n", "2", options.program, "steps", str(self.disk / "run"), "0"],
                              capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
        step = re.search(r"going on after step (\d+)", done.stderr)
        if done.returncode != 0 or not step or int(step[1]) < saves * STEPS_OF_SAVE:
            self.findings.append(f"WRONG checkpoint after {saves} saves: {done.stderr[-300:]}")

    def must_go_on(self):
        """Whether nothing is lost. A signal that tells a process to stop is for the program on the first node to decide."""
        fault = self.fault
        if fault.way == "TERM" and fault.what in ("worker", "agent"):
            return True
        if fault.moment == "start" and fault.what not in ("worker", "agent", "master", "disk"):
            return False  # engines do not try again to reach a host, and syncrun itself may not have begun
        if fault.way == "TERM" and fault.what == "syncrun":
            return fault.host != "n1"
        lasted = self.ended_at - self.struck_at if fault.seconds else float("inf")
        if fault.way == "STOP" and fault.what in ("worker", "syncrun"):
            return lasted < TIMEOUT_S / 2
        if fault.way == "STOP" and fault.what in ("agent", "master") or fault.what == "link":
            return lasted < 1  # a third of --node-timeout
        if fault.way == "full for the output":
            return fault.start != "mpich"  # which ends the job itself when it cannot write
        return fault.way == "full for logs" and fault.moment != "start"  # which checks the folder

    def names_the_cause(self):
        """Whether a message says what failed. Engines name the host if they end the job."""
        fault, text = self.fault, self.text
        text = text.replace("the master has ended the job", "")  # what every agent says at every failure
        text = re.sub(r"syncrun: node \d \(n\d\): rank.*|node \d \(n\d\): ", "", text) if fault.what != "worker" else text
        if fault.what == "worker" and self.rank is not None:
            return re.search(rf"rank {self.rank} \({fault.host}:cpu", text)
        if fault.what == "disk":
            return re.search("No space left|full disk", text)
        if fault.kind == "link all down":
            return re.search(r"n[123]", text)
        if fault.kind == "link cut from another":
            return re.search(rf"{fault.host}|{self.other()}|the master", text)
        if fault.host == "n1" or fault.what == "engine":
            return re.search(r"\bn1\b|the master|stopped by|n1", text)
        return re.search(fault.host, text)

    def check_blame(self):
        """The last word of syncrun, which has started the engine, names no host in vain. Without --launcher, each node says what
        it has seen."""
        fault = self.fault
        verdicts = [line for line in self.lines if line.startswith("syncrun: ")]
        if fault.start not in LAUNCHES or fault.what not in ("worker", "agent", "master", "syncrun", "host") or not verdicts:
            return
        named = set(re.findall(r"\((n\d)\b", verdicts[-1]))
        # The host has never answered, so only the number of its node is known.
        has_no_name = "which has not begun" in verdicts[-1] or "not found: node" in verdicts[-1]
        if named and fault.host not in named and not has_no_name:
            self.findings.append(f"BLAMES {', '.join(sorted(named))}")

    def judge(self):
        """Returns the outcome in words."""
        fault, text, code = self.fault, self.text, self.job.poll()
        if "not as expected" in text:
            self.findings.append("WRONG VALUE")
        is_complete = "as expected: " in text or fault.way == "full for the output"
        # MPICH's mpirun returns 0 after SIGTERM, and Open MPI's if it was stopped before it had started anything.
        is_quiet = "syncrun:" not in text and MOMENTS["work"] not in text
        engine_fails = fault.start in STARTS and fault.what == "engine" and (fault.kind == "engine TERM" or is_quiet)
        if code == 0 and not is_complete and engine_fails:
            code = 1
        if code == 0 and not is_complete:
            self.findings.append("WRONG exit code 0")
        is_restarted = "restart 1 of" in text
        if code == 0 and not is_restarted:
            return "went on, exit code 0"
        if code == 0 and self.names_the_cause():
            return "restarted, exit code 0"
        if self.waits and self.names_the_cause():
            return "named, and the restart waits for Slurm"
        is_its_own_end = code == -signal.SIGKILL and fault.kind == "syncrun KILL"  # it was to have the last word
        if not is_its_own_end:
            self.check_blame()
        limit = HANG_S if self.load <= 2 * os.cpu_count() else 2 * HANG_S
        if code is not None and not is_restarted and self.over_at - self.ended_at > limit:
            self.findings.append(f"SLOW: it took more than {limit} s to end")
        if self.must_go_on():
            self.findings.append(f"LOST: exit code {code}, although nothing was lost")
        if self.names_the_cause():
            return "named"
        if is_its_own_end:
            return "ended with the launcher"
        if "the steps begin" not in text or fault.moment == "end":
            return "ended before or after the session"
        if fault.what in ("engine", "daemon") or fault.kind == "host dies":
            return "ended by the engine"
        self.findings.append(f"NOT NAMED: exit code {code}")
        return "not named"


def name_of(pid):
    try:
        state = re.search(r"State:\s+(\S)", Path(f"/proc/{pid}/status").read_text())
        return f"{pid} {state[1]} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()[:160]}"
    except (OSError, TypeError):
        return str(pid)


def run_one(fault):
    disks = [Path(tempfile.mkdtemp(prefix="syncrun-campaign-")) for _ in range(2)]
    run = Run(fault, disks)
    began = time.monotonic()
    try:
        for disk in disks:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", disk], check=True)
        with Hosts(3, keep=[options.build, Path(options.program).parent, *disks], is_patient=True) as hosts:
            run.known = {hosts.folder.name, *(disk.name for disk in disks)}
            if "mpich" not in fault.start and "openmpi" not in fault.start and fault.start != "talkative":
                Slurm(hosts)
            run.start(hosts)
            struck = run.await_moment() and run.strike()
            if not struck:
                run.struck_at = run.struck_at or time.monotonic()
            run.await_end()
            for reader in run.readers:
                reader.join(1)
            run.check_files()
            run.check_checkpoint()
            outcome = run.judge()
            outcome = outcome if struck else "nothing to strike"
    finally:
        for disk in disks:
            subprocess.run(["umount", "--lazy", disk], check=False)
            shutil.rmtree(disk, ignore_errors=True)
    what = f" -- {'; '.join(run.findings)}" if run.findings else ""
    print(f"{fault}: {outcome}, {max(0.0, run.over_at - run.ended_at):.1f} s after it, "
          f"{time.monotonic() - began:.0f} s in all, load {run.load:.1f}{what}", flush=True)  # fmt: skip
    if run.findings or options.verbose:
        print("    | " + "    | ".join([line for line in run.lines if not line.startswith("step ")][-40:]), flush=True)
    return fault, outcome, run.findings


def try_one(fault):
    """An error of this script is a finding too."""
    try:
        return run_one(fault)
    except Exception as error:  # noqa: BLE001
        print(f"{fault}: {error!r}", flush=True)
        return fault, "error of this script", [repr(error)]


def enter_namespace():
    """Disks that this script mounts are its own, and end with it."""
    if IN_NAMESPACE not in os.environ:
        os.environ[IN_NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncrun", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--faults", type=int, default=20, help="how many")
    parser.add_argument("--seed", type=int, help="repeats the faults of an earlier run")
    parser.add_argument("--seconds", type=float, help="begin no more faults after this time")
    parser.add_argument("--only", metavar="NUMBER", type=int, action="append", help="run only this fault of the seed")
    parser.add_argument("--matching", metavar="EXPRESSION", default="", help="run only the faults whose line this expression "
                        "matches, for example 'syncrun STOP'")  # fmt: skip
    parser.add_argument("--at-a-time", type=int, default=1, help="how many jobs run at the same time")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of every job")
    options = parser.parse_args()
    if reason := hosts_module.why_impossible() or engines.why_impossible(*NEEDED):
        print(f"skipped: {reason}")
        sys.exit(SKIP_CODE)
    enter_namespace()
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    again = (f"{sys.argv[0]} --syncrun {options.syncrun} --program {options.program} --build {options.build} --seed {seed} "
             "--only NUMBER")  # fmt: skip
    print(f"seed {seed}; repeat a fault with: {again}", flush=True)
    faults = [choose(seed, number) for number in options.only or range(1, options.faults + 1)]
    faults = [fault for fault in faults if re.search(options.matching, str(fault))]
    last_start = time.monotonic() + (options.seconds or float("inf"))
    with concurrent.futures.ThreadPoolExecutor(options.at_a_time) as pool:
        results = list(pool.map(lambda fault: try_one(fault) if time.monotonic() < last_start else None, faults))
    results = [result for result in results if result]
    table = collections.Counter((fault.kind, outcome) for fault, outcome, _ in results)
    for (kind, outcome), count in sorted(table.items()):
        print(f"{kind:32} {outcome}: {count}")
    starts = collections.Counter(fault.start for fault, _, _ in results)
    print(f"{len(results)} faults: " + ", ".join(f"{start} {count}" for start, count in sorted(starts.items())))
    bad = [(fault, findings) for fault, _, findings in results if findings]
    for fault, findings in bad:
        print(f"error: {fault}: {'; '.join(findings)}. Repeat: {again.replace('NUMBER', str(fault.number))}")
    sys.exit(1 if bad else 0)


main()

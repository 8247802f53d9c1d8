#!/usr/bin/env python3
"""Every part of a job on three hosts fails, in every phase and in every way. Writes the table `nodes` of
docs/reliability.md (scripts/reliability.py).

The fault strikes n2, the node of ranks 2 and 3. The parts master and engine are on n1. Each case checks what every node
says, within which time, and that nothing is left on any host. Several cases run at a time, each on hosts of its own."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
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
from hosts import Hosts, rank_of

SKIP_CODE = 77
PHASES = ["start", "idle", "rows", "body", "returned", "collective", "vote", "update", "shared", "outputs", "close"]
# All nodes exchange blocks in these. The master carries those of its node. The other processes take no part in this, so
# they do not fail here.
EXCHANGES = ["collective", "update", "shared"]
EXCHANGING = ["worker", "agent", "master", "link", "node"]
PROCESSES = ["worker", "agent", "syncrun", "master", "engine", "daemon"]
WAYS = ["kill", "stop", "term", "silence"]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
DAEMONS = ("orted", "/usr/bin/orted", "hydra_pmi_proxy", "/usr/bin/hydra_pmi_proxy")
HELD_RANK = 2
READY_LIMIT_S = 30
END_LIMIT_S = 20
DEADLINE_S = 2  # of calls and of the end of a session, if a worker hangs
START_DEADLINE_S = 5
SLOWEST_THROW_S = 0.05  # from the signal that kills a worker to the exception; 5 to 20 ms if this machine is not busy
NEXT_CALL_S = 0.3  # after the limit of silence; the program is idle until then
SLOWEST_VERDICT_S = 0.5  # more than the limit of silence, until each node has said what happened
BUSY_S = 15  # what each of these limits gets in addition if other programs use this machine
ATTEMPTS = 3  # this machine may be busy, and a case that is too slow is tried again
options = None
quiet = threading.Lock()  # of the case in which milliseconds count at this time, which nothing else must disturb


class Case(NamedTuple):
    process: str
    phase: str
    way: str

    def __str__(self):
        return "_".join(self)


class Failed(Exception):
    pass


# What happens. The first word is the cell of the table, and the rest is a note below it.
NAMED = "named"
DATA_FIRST = "named: rows and results that are under way arrive before the news"
DEADLINE = "deadline"
GOES_ON = "goes on"
ENDS = "ends: the processes of the job end, because the engine takes them with it"
ENGINE = "engine: the engine sees the end of its task or daemon, ends the job at once, and names the node"
NO_WORK = "-: while results travel, the worker is idle"


def outcome_of(case):
    """What has to happen. A case without a test has an outcome that begins with "-"."""
    if case.way == "term" and case.process in ("worker", "agent", "syncrun", "node"):
        return GOES_ON  # the program on n1 decides
    if case.process == "worker":
        if case.phase == "outputs" and case.way == "silence":
            return NO_WORK
        if case.way in ("stop", "silence"):
            return DEADLINE
        return DATA_FIRST if case.phase in ("rows", "outputs") else NAMED
    if case.process == "engine":
        return GOES_ON if case.way == "stop" else ENDS
    if case.process in ("daemon", "syncrun"):
        return GOES_ON if case.way == "stop" else ENGINE
    return NAMED


def engine_of(case):
    """mpirun of Open MPI ends a job when it misses a node. Then no node can say more than the engine does, so this is srun.
    Open MPI itself ends a process that sends something large to one that has died. So this is MPICH."""
    sends = case.phase in ("rows", "outputs", *EXCHANGES)
    if case.process == "node":
        return engines.ENGINES["pmi2" if sends else "pmix"]
    return engines.ENGINES["mpich"] if case.process in ("agent", "link", "master", "syncrun") and sends else engines.OTHERS["talkative"]


def is_measured(case):
    """In these cases, milliseconds count."""
    return case.process == "worker" and outcome_of(case) == NAMED


def throw_limit_s(case):
    """How long it may take from the death of a worker to the exception. A start waits until all workers have begun."""
    return 2 if case.phase == "start" else SLOWEST_THROW_S


def verdict_limit_s(case):
    """How long it may take until each node has said what happened."""
    idle = NEXT_CALL_S if case.phase == "idle" else 0
    return float(options.node_timeout) + idle + SLOWEST_VERDICT_S


def exists(process, phase, way):
    if process == "link" and way != "silence":
        return False  # a link gets no signals
    if way == "silence" and process in PROCESSES and process != "worker":
        return False  # a process that does nothing looks to all others as if it were stopped
    if phase in EXCHANGES:
        return process in EXCHANGING
    return phase != "returned" or process == "worker"  # for the others, it is as if all ranks are in the body


def all_cases():
    return [Case(process, phase, way) for process in [*PROCESSES, "link", "node"] for phase in PHASES for way in WAYS
            if exists(process, phase, way)]  # fmt: skip


class Process(NamedTuple):
    host: str
    pid: int
    parent: int
    line: str


def processes(hosts):
    """The processes on all hosts."""
    spaces = {}
    for host, pid in hosts.init.items():
        try:
            spaces[os.readlink(f"/proc/{pid}/ns/pid")] = host
        except OSError:
            pass  # the host is dead
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            host = spaces.get(os.readlink(entry / "ns/pid"))
            if host is None:
                continue
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if line:
            found.append(Process(host, int(entry.name), parent, line))
    return found


class Run:
    """A job in one phase."""

    def __init__(self, hosts, case, engine):
        self.hosts = hosts
        self.case = case
        self.folder = Path(tempfile.mkdtemp(dir=hosts.folder))
        self.held = {"start": "device", "close": "close"}.get(case.phase)
        hangs = case.process == "worker" and case.way == "silence"
        if hangs:
            places = {"idle": "idle", "rows": "inputs", "body": "function,call=2", **dict.fromkeys(EXCHANGES, "collective")}
            self.held = places.get(case.phase, self.held)
        variables = []
        if self.held:
            fault = f"SYNCRUN_FAULT=rank={HELD_RANK},phase={self.held},way=hold"
            variables = [fault, f"SYNCRUN_FAULT_UNTIL={self.folder / ('never' if hangs else 'go')}"]
        if case.phase == "rows":
            hosts.set_rate("n2", "in")
        if case.phase == "outputs":
            hosts.set_rate("n2", "out")
        limits = []
        if outcome_of(case) == DEADLINE:
            limits = ["--timeout", DEADLINE_S, "--start-timeout", START_DEADLINE_S, "--grace", DEADLINE_S]
        script = f'exec "$@" 2>>{self.folder}/$(hostname).err'
        command = ["env", *variables, "sh", "-c", script, "sh", options.syncrun, "-n", "2", "--node-timeout",
                   str(options.node_timeout), *map(str, limits), options.program, case.phase, str(self.folder)]  # fmt: skip
        self.struck = []
        self.reached = 0
        self.output = (self.folder / "engine").open("w")
        self.job = hosts.start("n1", engine.command(hosts, 3, command), stdin=subprocess.DEVNULL, stdout=self.output,
                               stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        self.engine = engine

    def text(self, name):
        file = self.folder / name
        return file.read_text(errors="replace") if file.exists() else ""

    def await_that(self, what, holds, limit):
        end = time.monotonic() + limit
        while not holds():
            if time.monotonic() > end:
                raise Failed(f"not within {limit} s: {what}")
            time.sleep(0.005)

    def await_phase(self):
        def is_there():
            if self.held and "injected fault: hold" not in self.text("n2.err"):
                return False
            if self.held and (self.case.phase == "start" or self.case.way == "silence"):
                return True
            if self.job.poll() is not None:
                raise Failed(f"the job ended with code {self.job.returncode} before the fault")
            in_body = ["rank3"] if self.case.phase in ("body", "returned", "collective", "vote", "outputs") else []
            return all((self.folder / name).exists() for name in ["ready", *in_body])

        self.await_that(f"phase {self.case.phase}", is_there, READY_LIMIT_S)
        self.reached = time.monotonic()
        time.sleep(0.3)

    def strike(self):
        """Lets the fault happen. Returns the time right before it."""
        case, began = self.case, time.monotonic()
        if case.process == "worker" and case.way == "silence":
            return began  # it hangs already
        if case.way == "silence":
            self.hosts.set_link("n2", "down")
        if case.process == "link":
            return began
        if case.process == "node" and case.way in ("kill", "silence"):
            self.hosts.kill_host("n2")
            return began
        self.struck = self.targets()
        began = time.monotonic()  # the search for the processes takes some milliseconds
        for pid in self.struck:
            try:
                os.kill(pid, SIGNALS[case.way])
            except ProcessLookupError:
                pass  # it has ended because of another one
        return began

    def targets(self):
        """The processes that get the signal."""
        case, all_processes = self.case, processes(self.hosts)
        supervisors = {process.pid: process.host for process in all_processes if process.line.startswith(options.syncrun)}
        programs = [process for process in all_processes if process.line.startswith(options.program)]
        first = {supervisors[process.parent]: process.pid for process in programs if process.parent in supervisors}
        targets = {
            "worker": lambda: [process.pid for process in programs if rank_of(process.pid) == HELD_RANK],
            "agent": lambda: [first[host] for host in ("n2",) if host in first],
            "master": lambda: [first[host] for host in ("n1",) if host in first],
            "syncrun": lambda: [pid for pid, host in supervisors.items() if host == "n2"],
            "engine": lambda: [process.pid for process in all_processes if process.line.startswith(self.engine.process.split()[0])][:1],
            "daemon": lambda: [process.pid for process in all_processes if process.host == "n2" and process.line.startswith(DAEMONS)],
            "node": lambda: [process.pid for process in all_processes if process.host == "n2" and process.pid != self.hosts.init["n2"]],
        }[case.process]()  # fmt: skip
        if not targets:
            raise Failed(f"no {case.process} to strike")
        return targets

    def ours(self):
        found = processes(self.hosts)
        return [process for process in found if process.line.startswith((options.syncrun, options.program))]

    def names(self, host):
        """Whether this host has said what has failed."""
        process = self.case.process
        if process == "worker":
            pattern = rf"rank {HELD_RANK} \(n2:cpu0"
        elif process == "master":
            pattern = r"the master \(pid \d+\) was|stopped by" if host == "n1" else r"node 0.*the master was"
        elif host == "n2":
            pattern = r"node 0.*the master was|the agent of node 1 \(n2\)"
        else:
            pattern = r"node 1 \(n2\)"
        text = re.sub(r"syncrun: node \d \(n\d\): rank.*", "", self.text(f"{host}.err"))
        return re.search(pattern, text) is not None

    def witnesses(self):
        """The hosts that have to name what has failed."""
        if self.case.process in ("node", "daemon", "syncrun"):
            return ["n1", "n3"]
        return ["n1", "n2", "n3"]

    def await_exception(self):
        """Looks for nothing else, because the search for processes takes a large part of a core."""
        end = time.monotonic() + END_LIMIT_S
        while not (self.folder / "thrown").exists() and self.job.poll() is None and time.monotonic() < end:
            time.sleep(0.005)

    def await_engine(self):
        """The engine takes seconds to end, and another case is measured meanwhile."""
        end = time.monotonic() + END_LIMIT_S
        while self.job.poll() is None and time.monotonic() < end:
            time.sleep(0.05)

    def observe(self, began):
        """Follows the job to its end. Returns the outcome and its time."""
        named = {}
        end = time.monotonic() + END_LIMIT_S
        while True:
            for host in self.witnesses():
                if host not in named and self.names(host):
                    named[host] = time.monotonic() - began
            left = self.ours()
            if self.case == ("node", self.case.phase, "stop") and not any(process.host != "n2" for process in left):
                self.go_on()
            if not left:
                break
            if time.monotonic() > end:
                raise Failed(f"left after {END_LIMIT_S} s: {[(process.host, process.line[:80]) for process in left]}")
            time.sleep(0.01)
        ended = time.monotonic() - began
        for host in self.witnesses():
            if host not in named and self.names(host):
                named[host] = time.monotonic() - began
        self.check_files()
        if outcome_of(self.case) in (ENDS, GOES_ON):
            return (GOES_ON if (self.folder / "done").exists() else ENDS), ended
        if len(named) < len(self.witnesses()):
            host = "n1" if self.case.process == "master" else "n2"
            self.await_that(f"a message that names {host}; only {sorted(named)} did",
                            lambda: re.search(rf"\b{host}\b", self.text("engine")), END_LIMIT_S)  # fmt: skip
            return ENGINE, ended
        thrown = self.text("thrown")
        if self.case.process != "worker":
            return NAMED, max(named.values())
        if not thrown:
            raise Failed("the master got no exception")
        is_deadline = re.search("deadline|limit|within|not ended|grace", thrown) is not None
        outcome = DEADLINE if is_deadline else DATA_FIRST if self.case.phase in ("rows", "outputs") else NAMED
        return outcome, int(thrown.split()[0]) / 1e9 - began

    def go_on(self):
        """What was stopped goes on."""
        for pid in self.struck:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        self.struck = []

    def check_files(self):
        """Nothing of ours is left in the shared memory or in the temporary folder of a host."""
        engines_files = ("ompi.", "pmix", "spmix")
        shared_folders = {folder.parts[2] for folder in self.hosts.keep if folder.is_relative_to("/tmp")}
        for host, pid in self.hosts.init.items():
            shared = Path(f"/proc/{pid}/root/dev/shm")
            temporary = self.hosts.folder / host / "tmp"
            found = [*shared.glob("*")] if shared.exists() else []
            found += [file for file in temporary.glob("*") if not file.name.startswith(engines_files)]
            found = [file for file in found if file.name not in shared_folders]
            if found:
                raise Failed(f"files left on {host}: {[file.name for file in found]}")

    def go(self):
        (self.folder / "go").touch()

    def end(self):
        """Ends what the engine has left."""
        if self.job.poll() is None:
            os.killpg(self.job.pid, signal.SIGKILL)
        self.output.close()


def strike_in_phase(run):
    """Returns the time from which the outcome is measured."""
    case = run.case
    run.await_phase()
    began = run.strike()
    if outcome_of(case) == GOES_ON:
        time.sleep(float(options.node_timeout) + 0.5)
        run.go()
        run.await_that("the end of the program", (run.folder / "done").exists, END_LIMIT_S)
        run.go_on()
    elif case.phase == "idle" and case.process not in ("worker", "master", "engine"):
        # The master notices it at once, and the program in its next call.
        time.sleep(float(options.node_timeout) + NEXT_CALL_S)
        run.go()
    elif case.process == "worker" and (case.phase == "idle" or outcome_of(case) == DEADLINE):
        # The master notices it in the next call. A worker that hangs holds up the others in no other way.
        time.sleep(0.2)
        began = run.reached if case.way == "silence" else time.monotonic()
        if case.phase not in ("returned", "vote"):
            run.go()
    return began


def check(case, outcome, seconds):
    if outcome != outcome_of(case):
        raise Failed(f"expected {outcome_of(case)!r}, found {outcome!r}")
    limit = None
    if outcome == NAMED:
        limit = throw_limit_s(case) if case.process == "worker" else verdict_limit_s(case)
    if limit is not None and options.busy:
        limit += BUSY_S
    if limit is not None and seconds > limit:
        raise Failed(f"{seconds:.3f} s, expected {limit} s at most")


def run_on(hosts, case, turn):
    run = None
    try:
        with turn:  # from the start of the job, whose ranks may compute without a pause, to the exception
            if engine_of(case).name.startswith("srun"):
                engines.Slurm(hosts)
            run = Run(hosts, case, engine_of(case))
            began = strike_in_phase(run)
            if is_measured(case):
                run.await_exception()
        if is_measured(case):
            run.await_engine()
        outcome, seconds = run.observe(began)
        check(case, outcome, seconds)
        return outcome, seconds
    except Failed as failure:
        logs = "".join(f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}\n"
                       for file in sorted(run.folder.glob("*")) if file.is_file() and file.stat().st_size > 0)  # fmt: skip
        raise Failed(f"{failure}\n{logs}") from None
    finally:
        if run is not None:
            run.end()


def run_once(case):
    turn = quiet if is_measured(case) and not options.busy else contextlib.nullcontext()
    hosts = Hosts(3, keep=[options.build, Path(options.program).parent], is_patient=True)
    with turn:
        hosts.__enter__()
    try:
        return run_on(hosts, case, turn)
    finally:
        with turn:
            hosts.down()


def run_case(case):
    """Returns the outcome, the time and the failures."""
    failures = []
    for _ in range(options.attempts):
        try:
            outcome, seconds = run_once(case)
            print(f"{case}: {outcome.partition(':')[0]}, {seconds:.3f} s" + f" ({len(failures) + 1} attempts)" * bool(failures),
                  flush=True)  # fmt: skip
            return case, outcome, seconds, []
        except (Failed, hosts_module.HostsError, subprocess.SubprocessError) as failure:
            failures.append(str(failure))
            print(f"{case}: {failures[-1] if options.verbose else failures[-1].splitlines()[0]}", flush=True)
    return case, None, 0, failures


def results_of(done):
    """As the tests with GoogleTest write them."""
    tests = []
    for case, outcome, seconds, failures in done:
        test = {"name": str(case), "table": "nodes", "row": f"{case.process}, {case.phase}", "column": case.way}
        if outcome is not None:
            test |= {"outcome": outcome, "time_us": str(int(seconds * 1e6))}
        if failures:
            test["failures"] = failures
        tests.append(test)
    return {"testsuites": [{"name": "Of/Nodes", "testsuite": tests}]}


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--syncrun")
    parser.add_argument("--program")
    parser.add_argument("--build")
    parser.add_argument("--node-timeout", help="the limit of silence in seconds (default: 1, with --busy 3)")
    parser.add_argument("--at-a-time", type=int, default=3, help="how many cases run at the same time")
    parser.add_argument("--busy", action="store_true", help="other programs use this machine, so milliseconds do not count")
    parser.add_argument("--part", default=os.environ.get("NODES_MATRIX_PART", "1/1"),
                        help="a share of the cases: 2/3 is the second of three (default: NODES_MATRIX_PART, or all)")  # fmt: skip
    parser.add_argument("--attempts", type=int, default=ATTEMPTS)
    parser.add_argument("--results", help="the file for the results")
    parser.add_argument("--verbose", action="store_true", help="show what the nodes of a failed case have said")
    parser.add_argument("--gtest_list_tests", action="store_true", help="list the cases and do not run them")
    parser.add_argument("patterns", nargs="*", help="run the cases that one of these expressions matches")
    options = parser.parse_args()
    options.node_timeout = options.node_timeout or ("3" if options.busy else "1")
    if options.gtest_list_tests:
        print("Of/Nodes.\n" + "\n".join(f"  {case}" for case in all_cases()))
        return 0
    if reason := hosts_module.why_impossible() or engines.why_impossible(*engines.OpenMpi.tools, *engines.Mpich.tools, *engines.Srun.tools):
        print(f"skipped: {reason}")
        return SKIP_CODE
    cases = [case for case in all_cases() if not options.patterns or any(re.fullmatch(p, str(case)) for p in options.patterns)]
    began = time.monotonic()
    done = [(case, outcome_of(case), 0, []) for case in cases if outcome_of(case).startswith("-")]
    tested = [case for case in cases if not outcome_of(case).startswith("-")]
    part, parts = map(int, options.part.split("/"))
    tested = tested[part - 1 :: parts]
    for measured in (True, False):  # the measured ones have the machine for themselves
        with concurrent.futures.ThreadPoolExecutor(options.at_a_time) as pool:
            done += pool.map(run_case, [case for case in tested if is_measured(case) == measured])
    failed = [str(case) for case, _, _, failures in done if failures]
    if options.results:
        Path(options.results).write_text(json.dumps(results_of(done), indent=1), encoding="utf-8")
    print(f"{len(tested)} cases in {time.monotonic() - began:.0f} s, {len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""campaign.py --syncrun FILE --program FILE --build FOLDER [--faults 100] [--seed 1]: ends random processes, links and hosts
of jobs on three hosts at random moments, under all engines. After each fault, checks that the job ends, that nothing is left
on any host, and whether the output names the node. Prints a line for each fault, and a table at the end. The tests run ten
faults. A hundred take about ten minutes."""

import argparse
import collections
import concurrent.futures
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import hosts as hosts_module
import engines
from engines import ENGINES, OTHERS, Slurm
from hosts import Hosts

SKIP_CODE = 77
END_LIMIT_S = 30
STOPPED_S = 10  # a stopped syncrun goes on after this time, because it cannot end before
SIGNALS = {"SIGCONT": signal.SIGCONT, "SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
QUIET_S = 1  # without processes, until a job counts as over: the engine may still be about to start some
ACTIONS = {"body": ["body", "60"], "idle": ["idle", "6"], "stream": ["stream", "60"]}
# A stopped syncrun changes nothing for the session, so the program has to come to its own end.
SHORT_ACTIONS = {"body": ["body", "6"], "idle": ["idle", "6"], "stream": ["stream", "12"]}
NEEDED = ("mpirun.openmpi", "mpirun.mpich", *engines.Srun.tools)
options = None


def processes(hosts, host):
    """syncrun, the agent or master, and the workers of a host. Each may be missing."""
    return hosts.pids(host, options.syncrun), hosts.pids(host, options.program)


def strike(hosts, what, host, name):
    """Returns whether there was something to strike."""
    if what == "link":
        hosts.set_link(host, "down")
        return True
    if what == "host":
        hosts.kill_host(host)
        return True
    supervisors, programs = processes(hosts, host)
    target = {"syncrun": supervisors[:1], "agent": programs[:1], "worker": programs[1:]}[what]
    try:
        if target:
            os.kill(random.choice(target), SIGNALS[name])
    except ProcessLookupError:
        return False  # it has just ended
    return bool(target)


def left(hosts, dead):
    return [pid for host in hosts.names if host not in dead for found in processes(hosts, host) for pid in found]


def await_end(hosts, job, dead, wake):
    """Waits until nothing of ours is left. Returns whether that was so in time. `wake` lets what was stopped go on."""
    began = time.monotonic()
    seen_at = began
    while time.monotonic() - began < END_LIMIT_S:
        now = time.monotonic()
        if left(hosts, dead):
            seen_at = now
        elif job.poll() is not None or now - seen_at > QUIET_S:
            return True
        if now - began > STOPPED_S:
            wake()
        time.sleep(0.05)
    return False


class Fault(NamedTuple):
    number: int
    engine: str
    action: str
    what: str
    name: str
    host: str
    delay: float


def choose(number):
    # Open MPI names a host that has died only if it is not told to be quiet.
    engine_name = random.choice(["talkative", "mpich", "pmix", "pmi2"])
    action = random.choice(list(ACTIONS))
    what = random.choice(["worker", "worker", "agent", "agent", "syncrun", "link", "host"])
    name = random.choice(["SIGKILL", "SIGSTOP", "SIGTERM"]) if what in ("worker", "agent", "syncrun") else "-"
    host = random.choice(["n1", "n2", "n3"] if what in ("worker", "agent", "syncrun") else ["n2", "n3"])
    return Fault(number, engine_name, action, what, name, host, random.uniform(0.2, 1.5))


def text_of(fault):
    number, engine_name, action, what, name, host, delay = fault
    return f"{number:3} {engine_name:8} {action:7} {what:8} {name:8} {host} after {delay:.2f} s"


def run_one(fault):
    number, engine_name, action, what, name, host, delay = fault
    with Hosts(3, keep=[options.build, Path(options.program).parent], is_patient=True) as hosts:
        if engine_name in ("pmix", "pmi2"):
            Slurm(hosts)
        is_stop = (what, name) == ("syncrun", "SIGSTOP")
        arguments = (SHORT_ACTIONS if is_stop else ACTIONS)[action]
        command = [options.syncrun, "-n", "2", "--timeout", "8", "--start-timeout", "10", options.program, *arguments]
        job = hosts.start("n1", {**ENGINES, **OTHERS}[engine_name].command(hosts, 3, command), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(job.stdout), daemon=True)
        reader.start()
        time.sleep(delay)
        began = time.monotonic()
        struck = strike(hosts, what, host, name)
        dead = {host} if what == "host" else set()
        # A job that nothing struck goes on.
        hangs = struck and not await_end(hosts, job, dead, lambda: is_stop and strike(hosts, what, host, "SIGCONT"))
        seconds = time.monotonic() - began
        time.sleep(0.3)
        text = "".join(lines)
        places = r"syncrun: node \d \(n\d\): rank.*"
        is_named = bool(re.search(rf"{host}|the master .* was" if host == "n1" else host, re.sub(places, "", text)))
        has_begun = re.search(places, text) is not None
        goes_on = is_stop and has_begun and job.poll() == 0
    outcome = "nothing to strike" if not struck else "HANGS" if hangs else "named" if is_named else "ended, not named"
    if goes_on and not hangs:
        outcome = "went on to exit code 0"
    if outcome == "ended, not named" and not has_begun:
        outcome = "ended before the session"  # MPI does not say which node is missing
    print(f"{text_of(fault)}: {outcome}, {seconds:.1f} s", flush=True)
    if outcome in ("HANGS", "ended, not named") and options.verbose:
        print("    " + "    ".join(lines[-8:]))
    return what, name, outcome


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--syncrun", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="EXPRESSION", default="", help="run only the faults among them whose line this expression matches, "
                        "for example 'syncrun +SIGSTOP'")  # fmt: skip
    parser.add_argument("--at-a-time", type=int, default=1, help="how many jobs run at the same time")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of jobs that did not name the node")
    options = parser.parse_args()
    if reason := hosts_module.why_impossible() or engines.why_impossible(*NEEDED):
        print(f"skipped: {reason}")
        sys.exit(SKIP_CODE)
    random.seed(options.seed)
    faults = [choose(number) for number in range(1, options.faults + 1)]
    faults = [fault for fault in faults if re.search(options.only, text_of(fault))]
    with concurrent.futures.ThreadPoolExecutor(options.at_a_time) as pool:
        table = collections.Counter(pool.map(run_one, faults))
    for (what, name, outcome), count in sorted(table.items()):
        print(f"{what:8} {name:8} {outcome}: {count}")
    sys.exit(any(outcome == "HANGS" for _, _, outcome in table))


main()

#!/usr/bin/env python3
"""run_nodes.py --build FOLDER: measures sessions on 2, 3 and 4 hosts against MPI, in turn, and prints a table.

The hosts are namespaces of this machine (tests/nodes/hosts.py), so all of them share its cores. It needs root and Open MPI.
All processes are in one control group for the CPU. Otherwise Linux may give each host a group of its own (autogroup), and
a process that yields gives the core only to processes of the same host.
Each figure is the median of the runs. Each ratio is the median of the ratios of runs that follow each other.
"""

import argparse
import atexit
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/nodes"))

from engines import ENGINES, Slurm  # noqa: E402
from hosts import Hosts, why_impossible  # noqa: E402

WORKERS = 2
RUN_LIMIT_S = 120


def join_one_group():
    """Moves this process, and so all that it starts, into a control group. Other programs get little of the cores."""
    root = Path("/sys/fs/cgroup")
    is_v2 = (root / "cgroup.controllers").exists()
    group = root / "syncrun-bench" if is_v2 else root / "cpu/syncrun-bench"
    try:
        if is_v2:
            (root / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir(exist_ok=True)
        (group / ("cpu.weight" if is_v2 else "cpu.shares")).write_text("10000" if is_v2 else "100000")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        print(f"no control group ({error}): figures vary more", file=sys.stderr)
        return

    def leave():
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            try:
                return group.rmdir()
            except OSError:  # processes of the last hosts are still ending
                time.sleep(0.05)
        return None

    atexit.register(leave)


def figures_of(hosts, command):
    done = hosts.run("n1", command, timeout=RUN_LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def mpi_command(hosts, nodes, program):
    """The master and two workers on n1, two workers on each other host."""
    slots = ",".join(f"{name}:{WORKERS + (name == 'n1')}" for name in hosts.names[:nodes])
    command = ["mpirun.openmpi", "--host", slots, "--bind-to", "none", "--oversubscribe"]
    # The processes of a host use shared memory. There are more of them than cores, so they yield while they wait.
    return [*command, "--mca", "btl", "tcp,self,vader",
            "--mca", "mpi_yield_when_idle", "1", "-np", str(WORKERS * nodes + 1), *program]


def compare(build, nodes, rounds, calls):
    ours, theirs = [], []
    with Hosts(nodes, keep=[build]) as hosts:
        program = [build / "bin/syncrun", "--quiet", "-n", WORKERS, build / "bench/bench_nodes", calls]
        syncrun = ENGINES["openmpi"].command(hosts, nodes, [str(word) for word in program])
        mpi = mpi_command(hosts, nodes, [str(build / "bench/comparators/mpi_nodes"), str(calls)])
        for _ in range(rounds):
            theirs.append(figures_of(hosts, mpi))
            ours.append(figures_of(hosts, syncrun))
    median = statistics.median
    print(f"{nodes} hosts of {WORKERS} workers:")
    for what, other in (("empty_call", "empty_call"), ("eight_in_flight", "empty_call"), ("fresh_batch", "fresh_batch")):
        ratio = median(mpi[other] / own[what] for own, mpi in zip(ours, theirs))
        own, mpi = median(run[what] for run in ours), median(run[other] for run in theirs)
        print(f"  {what}: Syncrun {own:.1f} us, MPI {mpi:.1f} us, MPI / Syncrun {ratio:.2f}", flush=True)


def compare_starts(build, rounds):
    """The start over four hosts under srun, to the end of the first call or barrier."""
    ours, theirs = [], []
    with Hosts(4, keep=[build]) as hosts:
        Slurm(hosts)

        def seconds(program):
            begin = time.monotonic()
            figures_of(hosts, ENGINES["pmix"].command(hosts, 4, [str(word) for word in program]))
            return time.monotonic() - begin

        for _ in range(rounds):
            theirs.append(seconds([build / "bench/comparators/mpi_nodes", 1, "start"]))
            ours.append(seconds([build / "bin/syncrun", "--quiet", "-n", 2, build / "bench/bench_nodes", 1, "start"]))
    ratio = statistics.median(own / mpi for own, mpi in zip(ours, theirs))
    print(f"start over 4 hosts under srun: Syncrun {statistics.median(ours):.3f} s, MPI {statistics.median(theirs):.3f} s, "
          f"Syncrun / MPI {ratio:.2f}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="a build folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3000)
    arguments = parser.parse_args()
    if reason := why_impossible():
        sys.exit(f"no hosts: {reason}")
    join_one_group()
    build = arguments.build.resolve()
    for nodes in (2, 3, 4):
        compare(build, nodes, arguments.rounds, arguments.calls)
    compare_starts(build, arguments.rounds)


main()

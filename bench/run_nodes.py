#!/usr/bin/env python3
"""run_nodes.py --build FOLDER: measures sessions on 2, 3 and 4 hosts against MPI, in turn, and prints tables.

    bench/run_nodes.py --build build/release                       # everything: about half an hour
    bench/run_nodes.py --build build/release --only digits
    bench/run_nodes.py --build build/release --quick               # only shows that it runs: half a minute

The hosts are namespaces of this machine (tests/nodes/hosts.py), so all of them share its cores. It needs root and
Open MPI. With MPICH, all_reduce and the digits are measured with it too.
All processes are in one control group for the CPU. Otherwise Linux may give each host a group of its own (autogroup),
and a process that yields gives the core only to processes of the same host.
Each figure is the median of the runs. Each ratio is the median of the ratios of runs that follow each other. MPI has
several algorithms for MPI_Allreduce. All of those below are measured, and the fastest one of each size counts.
"""

import argparse
import atexit
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from programs import SKIPPED, commit, json_lines, machine

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/nodes"))

from engines import ENGINES, Slurm, why_impossible as why_no_engine  # noqa: E402
from hosts import HERE as NODES, Hosts, why_impossible  # noqa: E402

WORKERS = 2
RUN_LIMIT_S = 120
KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
# Hosts, and workers on each. MPICH never yields while it waits. With more processes than cores, it needs 8 ms for 8
# bytes, and some runs do not end within minutes. So with MPICH, each process has a core. With --quick, sessions over
# MPICH are compared with programs of Open MPI, because tests run beside others. No test runs the programs of MPICH.
LAYOUTS = {"openmpi": ((2, 2), (3, 1), (4, 1)), "mpich": ((2, 1),)}
GROUPS = ("calls", "all_reduce", "digits", "start")

# The component han of Open MPI 4.1.4 is not among these. It crashes with MPI_IN_PLACE, and was slower where it did not.
RULES = {"coll_tuned_use_dynamic_rules": "1"}
OPENMPI_SETTINGS = {
    "its own choice": {},
    "nonoverlapping": {**RULES, "coll_tuned_allreduce_algorithm": "2"},
    "recursive doubling": {**RULES, "coll_tuned_allreduce_algorithm": "3"},
    "ring": {**RULES, "coll_tuned_allreduce_algorithm": "4"},
    # Open MPI's own choice uses these segments with this algorithm.
    "segmented ring": {**RULES, "coll_tuned_allreduce_algorithm": "5",
                       "coll_tuned_allreduce_algorithm_segmentsize": str(MIB)},
    "Rabenseifner": {**RULES, "coll_tuned_allreduce_algorithm": "6"},
}
MPICH_SETTINGS = {"its own choice": {}}
SETTINGS = {"openmpi": OPENMPI_SETTINGS, "mpich": MPICH_SETTINGS}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
# The losses of both programs differ by rounding, which grows from step to step.
LARGEST_DIFFERENCE = {"float32": 1e-3, "float64": 1e-9}


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


def lines_of(hosts, command):
    try:
        done = hosts.run("n1", command, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(map(str, command))}: still running after {RUN_LIMIT_S} s")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return list(json_lines(done.stdout))


def figures_of(hosts, command):
    return lines_of(hosts, command)[-1]


def syncrun_command(hosts, mpi, workers, program):
    build = options.build
    command = [build / "bin/syncrun", "--quiet", "-n", workers, build / "bench" / program[0], *program[1:]]
    return ENGINES[mpi].command(hosts, len(hosts.names), [str(word) for word in command])


def openmpi_command(hosts, slots, program, setting=()):
    """`slots` are the numbers of processes on the hosts. The processes of a host use shared memory. There are more
    processes than cores, so they yield while they wait."""
    places = ",".join(f"{name}:{count}" for name, count in zip(hosts.names, slots, strict=True))
    flags = [word for name, value in dict(setting).items() for word in ("--mca", name, value)]
    return ["mpirun.openmpi", "--host", places, "--bind-to", "none", "--oversubscribe",
            "--mca", "btl", "tcp,self,vader", "--mca", "mpi_yield_when_idle", "1", *flags,
            "-x", "OMP_NUM_THREADS=1", "-x", "OPENBLAS_NUM_THREADS=1", "-np", str(sum(slots)), *map(str, program)]


def mpich_command(hosts, slots, program, setting=()):
    places = ",".join(f"{name}:{count}" for name, count in zip(hosts.names, slots, strict=True))
    variables = {**dict(setting), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    flags = [word for name, value in variables.items() for word in ("-genv", name, value)]
    return ["mpirun.mpich", "-hosts", places, "-launcher", "rsh", "-launcher-exec", str(NODES / "remote_shell.py"),
            "-bind-to", "none", "-iface", "eth0", *flags, "-np", str(sum(slots)), *map(str, program)]


COMMANDS = {"openmpi": openmpi_command, "mpich": mpich_command}


def measured_against(mpi):
    return "openmpi" if options.quick else mpi


def comparator(mpi, name):
    path = options.build / "bench/comparators" / (name if mpi == "openmpi" else f"{name}_mpich")
    return path if path.exists() else None


# ---- calls and the start ---------------------------------------------------------------------------------------------


def compare_calls(nodes, table):
    calls = 300 if options.quick else 3000
    ours, theirs = [], []
    with Hosts(nodes, keep=[options.build]) as hosts:
        syncrun = syncrun_command(hosts, "openmpi", WORKERS, ["bench_nodes", calls])
        # The master and two workers on n1, two workers on each other host.
        slots = [WORKERS + 1] + [WORKERS] * (nodes - 1)
        mpi = openmpi_command(hosts, slots, [options.build / "bench/comparators/mpi_nodes", calls])
        for _ in range(options.rounds):
            theirs.append(figures_of(hosts, mpi))
            ours.append(figures_of(hosts, syncrun))
    print(f"{nodes} hosts of {WORKERS} workers:")
    for what in ("empty_call", "eight_in_flight", "fresh_batch", "large_output"):
        other = "empty_call" if what == "eight_in_flight" else what
        row = row_of(what, nodes, WORKERS, "openmpi", [run[what] for run in ours],
                     {"": [run[other] for run in theirs]})  # fmt: skip
        table.append(row)
        print_row(what, row)


def compare_starts(table):
    """The start over four hosts under srun, to the end of the first call or barrier."""
    ours, theirs = [], []
    with Hosts(4, keep=[options.build]) as hosts:
        Slurm(hosts)

        def microseconds(program):
            begin = time.monotonic()
            figures_of(hosts, ENGINES["pmix"].command(hosts, 4, [str(word) for word in program]))
            return (time.monotonic() - begin) * 1e6

        build = options.build
        for _ in range(options.rounds):
            theirs.append(microseconds([build / "bench/comparators/mpi_nodes", 1, "start"]))
            syncrun = [build / "bin/syncrun", "--quiet", "-n", WORKERS, build / "bench/bench_nodes", 1, "start"]
            ours.append(microseconds(syncrun))
    row = row_of("start", 4, WORKERS, "openmpi", ours, {"": theirs})
    table.append(row)
    print_row("start over 4 hosts under srun", row)


# ---- all_reduce ------------------------------------------------------------------------------------------------------


def target_of(size):
    """The least ratio of MPI's time to Syncrun's."""
    return 1.0 if size < MIB else 1.2


def compare_all_reduce(nodes, workers, mpi, table):
    other = measured_against(mpi)
    program = comparator(other, "mpi_all_reduce")
    sizes = SIZES[0:4:3] if options.quick else SIZES
    arguments = ["--seconds", 0.02 if options.quick else 0.1, "--sizes", ",".join(map(str, sizes))]
    ours = {size: [] for size in sizes}
    theirs = {size: {} for size in sizes}
    with Hosts(nodes, keep=[options.build]) as hosts:
        for _ in range(options.rounds):
            for setting, variables in SETTINGS[other].items():
                command = COMMANDS[other](hosts, [workers] * nodes, [program, *arguments], variables)
                best = {}
                for line in lines_of(hosts, command):  # in place, and with a second array
                    best[line["bytes"]] = min(line["median_us"], best.get(line["bytes"], line["median_us"]))
                for size, time_us in best.items():
                    theirs[size].setdefault(setting, []).append(time_us)
            for line in lines_of(hosts, syncrun_command(hosts, mpi, workers, ["bench_all_reduce", *arguments])):
                ours[line["bytes"]].append(line["median_us"])
    print(f"all_reduce on {hosts_in_words(nodes, workers)}, {names_in_words(mpi)}:")
    for size in sizes:
        row = row_of("all_reduce", nodes, workers, mpi, ours[size], theirs[size], target_of(size), size=size)
        table.append(row)
        print_row(size_in_words(size), row)


def hosts_in_words(nodes, workers):
    return f"{nodes} hosts of {workers} worker" + "s" * (workers > 1)


def names_in_words(mpi):
    other = measured_against(mpi)
    return NAMES[mpi] if other == mpi else f"{NAMES[mpi]} against {NAMES[other]}"


def size_in_words(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB" if size >= KIB else f"{size} B"


# ---- the digits ------------------------------------------------------------------------------------------------------


def compare_digits(mpi, table):
    """The train step. The target is for the first layout."""
    for layout in LAYOUTS[mpi][:1] if options.quick else LAYOUTS[mpi]:
        compare_digits_on(mpi, *layout, 1.0 if layout == LAYOUTS[mpi][0] else None, table)


def compare_digits_on(mpi, nodes, workers, target, table):
    other = measured_against(mpi)
    program = comparator(other, "mpi_digits")
    dtype = "float64" if options.quick else "float32"
    arguments = ["--epochs", 2 if options.quick else 4, "--dtype", dtype]
    ours, theirs, difference = [], {}, 0
    with Hosts(nodes, keep=[options.build, ROOT / "data"]) as hosts:
        syncrun = syncrun_command(hosts, mpi, workers, ["bench_digits", *arguments])
        for _ in range(options.rounds):
            runs = {}
            for setting, variables in SETTINGS[other].items():
                command = COMMANDS[other](hosts, [workers] * nodes, [program, *arguments], variables)
                runs[setting] = figures_of(hosts, command)
            own = figures_of(hosts, syncrun)
            ours.append(own["median_us"])
            for setting, run in runs.items():
                theirs.setdefault(setting, []).append(run["median_us"])
                difference = max([difference, *(abs(one / other - 1) for one, other in
                                                zip(own["losses"], run["losses"], strict=True))])
    row = row_of("digits", nodes, workers, mpi, ours, theirs, target, losses=own["losses"], difference=difference)
    table.append(row)
    print_row(f"train step of the digits on {hosts_in_words(nodes, workers)}, {names_in_words(mpi)}", row)
    print(f"    losses of the epochs: {own['losses']}, largest relative difference {difference:.1e}")
    if difference > LARGEST_DIFFERENCE[dtype]:
        sys.exit(f"the losses differ by {difference:.1e}; expected {LARGEST_DIFFERENCE[dtype]:.0e} at most")


# ---- tables ----------------------------------------------------------------------------------------------------------


def row_of(what, hosts, workers, mpi, ours, theirs, target=None, **more):
    """`ours` are the times of the runs, and `theirs` those of each setting of MPI. All are in microseconds."""
    median = statistics.median
    best = min(theirs, key=lambda setting: median(theirs[setting]))
    ratio = median(other / own for own, other in zip(ours, theirs[best], strict=True))
    row = {"benchmark": what, "hosts": hosts, "workers": workers, "mpi": mpi, "against": measured_against(mpi), **more,
           "ours_us": median(ours), "theirs_us": median(theirs[best]), "setting": best, "ratio": ratio,
           "runs": {"ours": ours, "theirs": theirs}}  # fmt: skip
    if target is not None and measured_against(mpi) == mpi:
        row |= {"target": target, "result": "met" if ratio >= target else "missed"}
    return row


def print_row(what, row):
    unit, scale = ("ms", 1000) if max(row["ours_us"], row["theirs_us"]) >= 10000 else ("us", 1)
    setting = f" ({row['setting']})" if row["setting"] else ""
    target = f", target {row['target']:.2f}: {row['result']}" if "target" in row else ""
    print(f"  {what}: Syncrun {row['ours_us'] / scale:.1f} {unit}, MPI {row['theirs_us'] / scale:.1f} {unit}{setting}, "
          f"MPI / Syncrun {row['ratio']:.2f}{target}", flush=True)  # fmt: skip


def plan():
    """The comparisons. Each one adds rows to the table."""
    mpis = [mpi for mpi in SETTINGS if not why_no_engine(*ENGINES[mpi].tools)]
    if "calls" in options.only:
        for nodes in (2,) if options.quick else (2, 3, 4):
            yield lambda table, nodes=nodes: compare_calls(nodes, table)
    for mpi in mpis:
        if "all_reduce" in options.only and comparator(measured_against(mpi), "mpi_all_reduce"):
            for nodes, workers in LAYOUTS[mpi][:1] if options.quick else LAYOUTS[mpi]:
                yield lambda table, layout=(nodes, workers), mpi=mpi: compare_all_reduce(*layout, mpi, table)
        if "digits" in options.only and comparator(measured_against(mpi), "mpi_digits"):
            yield lambda table, mpi=mpi: compare_digits(mpi, table)
    if "start" in options.only and not options.quick:
        yield compare_starts


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="a build folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--quick", action="store_true", help="one round of little, for a test")
    parser.add_argument("--json", type=Path, help="the file for the results")
    options = parser.parse_args()
    options.build = options.build.resolve()
    reason = why_impossible() or why_no_engine(*ENGINES["openmpi"].tools)
    if not reason and not comparator("openmpi", "mpi_nodes"):
        reason = "the comparators were not built"
    if reason:
        print(f"skipped: {reason}", file=sys.stderr)
        sys.exit(SKIPPED)
    if options.quick:
        options.rounds = 1
        for mpi, settings in SETTINGS.items():
            SETTINGS[mpi] = dict([*settings.items()][:1])
    else:
        join_one_group()
    results = {"machine": machine(), "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
               "commit": commit(), "rounds": options.rounds, "quick": options.quick, "table": []}  # fmt: skip
    for compare in plan():
        compare(results["table"])
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

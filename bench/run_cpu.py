#!/usr/bin/env python3
"""Runs Syncrun's CPU benchmarks and the programs they are compared with, and reports which targets are met.

    bench/run_cpu.py build/release                      # everything: about half an hour
    bench/run_cpu.py build/release --quick --only empty_call

Machines are shared and noisy. So Syncrun's programs and the comparators take turns within one run, several times and in
alternating order. A figure is the median over the repetitions of the median that a program prints. If a comparator has
several settings or algorithms, all are measured and the fastest counts. A program that is missing is reported as "not
run", with the reason. No figure comes from an earlier run.

Every program prints one JSON object per line. The script looks for Syncrun's programs by name in the build directory:

    bench_empty_call --workers N     {"name": "empty_call", "impl": "syncrun", "workers": N, "median_us": ...}
    bench_all_reduce --workers N     {"name": "all_reduce", ..., "bytes": B, "median_us": ...}, a line per size from
                                     1 KiB to 64 MiB in powers of four
    bench_kill --workers N --rounds R
                                     {"name": "kill", ..., "p99_us": ..., "samples": R}; may be one line for peers and
                                     one for the master ("kill_peers", "kill_master")
    syncrun -n 2 bench_launch_program
                                     an empty program (or bench_launch); this script measures it from start to exit
    bench_memory                     {"name": "memory", "impl": "syncrun", "workers": 8, "pss_bytes": ...}
    bench_update --workers N         {"name": "update", ..., "median_us": ..., "copy_us": ...}: adam, and the fastest
                                     copy of as many bytes
    bench_mnist --data DIR           {"name": "digits", "impl": "syncrun", "accuracy": ..., "seconds": ...}

Requires only Python's standard library. Uses scikit-learn if the interpreter of --python has it.
"""

import argparse
import collections
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import time

from programs import commit, execute, find_executable, json_lines, machine

HERE = pathlib.Path(__file__).resolve().parent
GROUPS = ("empty_call", "all_reduce", "kill", "launch", "memory", "update", "digits")
ONCE = ("kill", "memory")  # these take long, and either contain many rounds or do not vary
PROGRAM_DEADLINE_S = 600
LAUNCHES = 20

# Open MPI's own choice of algorithm is tuned for one core per process. With fewer cores, other algorithms are up to
# twice as fast. So these run too: (label, MCA parameters).
MPI_RULES = {"coll_tuned_use_dynamic_rules": "1"}
MPI_BARRIERS = (
    ("linear barrier and broadcast", {**MPI_RULES, "coll_tuned_barrier_algorithm": "1",
                                      "coll_tuned_bcast_algorithm": "1"}),
    ("tree barrier, linear broadcast", {**MPI_RULES, "coll_tuned_barrier_algorithm": "6",
                                        "coll_tuned_bcast_algorithm": "1"}),
)
MPI_ALL_REDUCES = (
    ("linear", {**MPI_RULES, "coll_tuned_allreduce_algorithm": "1"}),
    ("non-overlapping", {**MPI_RULES, "coll_tuned_allreduce_algorithm": "2"}),
    ("Rabenseifner, no single copy", {**MPI_RULES, "coll_tuned_allreduce_algorithm": "6",
                                      "btl_vader_single_copy_mechanism": "none"}),
)
MPI_COPIES = ("no single copy", {"btl_vader_single_copy_mechanism": "none"})
MPI_SHARED_MEMORY = ("coll sm", {"coll_sm_priority": "90"})

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclasses.dataclass
class Program:
    group: str
    impl: str
    command: list
    missing: str = ""  # why it cannot run; empty if it can
    setting: str = ""
    environment: dict = dataclasses.field(default_factory=dict)  # in addition to the environment of this script
    timed_launches: int = 0  # if above 0, the script itself measures the program this many times


@dataclasses.dataclass
class Row:
    what: str
    ours: str
    theirs: str
    ratio: str
    target: str
    verdict: str


# ---- what to run -----------------------------------------------------------------------------------------------------


class Plan:
    """The programs to run, in slots. The programs of a slot are compared, so they run directly after each other, in
    alternating order."""

    def __init__(self, options):
        self.options = options
        self.cores = len(os.sched_getaffinity(0))
        self.slots = [slot for group in options.only for slot in getattr(self, group)()]

    def _built(self, group, impl, name, arguments=(), setting=""):
        path = find_executable(self.options.build, name)
        missing = "" if path else f"no {name} in the build directory"
        return Program(group, impl, [path, *arguments], missing, setting)

    def _mpi(self, group, name, processes, arguments, settings):
        mpirun = shutil.which("mpirun")
        programs = []
        for label, flags in settings:
            program = self._built(group, "openmpi", name, arguments, label)
            if not mpirun:
                program.missing = "no mpirun"
            # With the shared-memory transport named, MPI does not search for networks. This makes nothing slower.
            program.command = [mpirun, "--oversubscribe", "--allow-run-as-root", "-n", str(processes),
                               "--mca", "pml", "ob1", "--mca", "btl", "self,vader", *flags, *program.command]
            programs.append(program)
        return programs

    @staticmethod
    def _mpi_flags(yields, bind, label="", extra=None):
        flags = ["--mca", "mpi_yield_when_idle", yields, "--bind-to", bind]
        for name, value in (extra or {}).items():
            flags += ["--mca", name, value]
        return f"yield {yields}, bind {bind.split(':')[0]}" + (f", {label}" if label else ""), flags

    def empty_call(self):
        seconds = "0.2" if self.options.quick else "0.5"
        for workers in (1, 2) if self.options.quick else (1, 2, 4, 8):
            bindings = ("none", "core:overload-allowed")
            settings = [self._mpi_flags(y, b) for y in "01" for b in bindings]
            settings += [self._mpi_flags("1", b, *algorithms) for b in bindings for algorithms in MPI_BARRIERS]
            if workers + 1 <= self.cores:  # it spins without yielding, and is many times slower with fewer cores
                settings += [self._mpi_flags("0", "none", *MPI_SHARED_MEMORY)]
            yield [
                self._built("empty_call", "syncrun", "bench_empty_call", ["--workers", str(workers)]),
                *self._mpi("empty_call", "mpi_empty_call", workers + 1, ["--seconds", seconds], settings),
                Program("empty_call", "python_barrier",
                        [sys.executable, str(HERE / "comparators" / "python_barrier.py"), "--workers", str(workers),
                         "--seconds", seconds]),
            ]

    def all_reduce(self):
        sizes = ["--seconds", "0.05" if self.options.quick else "0.15"]
        if self.options.quick:
            sizes += ["--max-bytes", str(MIB)]
        for workers in (2,) if self.options.quick else (2, 4):
            settings = [self._mpi_flags("1", "none"), self._mpi_flags("1", "none", *MPI_COPIES),
                        self._mpi_flags("1", "core:overload-allowed"),
                        *(self._mpi_flags("1", "none", *algorithm) for algorithm in MPI_ALL_REDUCES)]
            if workers <= self.cores:  # with fewer cores, any size takes tens of milliseconds
                settings += [self._mpi_flags("0", "none"), self._mpi_flags("0", "none", *MPI_COPIES),
                             self._mpi_flags("0", "none", *MPI_SHARED_MEMORY)]
            yield [
                self._built("all_reduce", "syncrun", "bench_all_reduce", ["--workers", str(workers)]),
                *self._mpi("all_reduce", "mpi_all_reduce", workers, sizes, settings),
                self._built("all_reduce", "gloo", "gloo_all_reduce", ["--workers", str(workers), *sizes]),
            ]

    def kill(self):
        rounds = "10" if self.options.quick else "100"
        for workers in (2,) if self.options.quick else (2, 4):
            yield [self._built("kill", "syncrun", "bench_kill", ["--workers", str(workers), "--rounds", rounds])]

    def launch(self):
        syncrun = find_executable(self.options.build, "syncrun")
        empty = next(filter(None, (find_executable(self.options.build, n)
                                   for n in ("bench_launch_program", "bench_launch"))), None)
        missing = "" if syncrun else "no syncrun in the build directory"
        if not empty:
            missing = missing or "no bench_launch_program in the build directory"
        yield [Program("launch", "syncrun", [syncrun, "-n", "2", empty], missing,
                       timed_launches=3 if self.options.quick else LAUNCHES)]

    def memory(self):
        yield [self._built("memory", "syncrun", "bench_memory")]

    def update(self):
        seconds = "1" if self.options.quick else "4"
        for workers in (1, 2):
            yield [self._built("update", "syncrun", "bench_update", ["--workers", str(workers), "--seconds", seconds])]

    def digits(self):
        data = str(self.options.data)
        command = [self.options.python, str(HERE / "comparators" / "sklearn_digits.py"), "--data", data]
        yield [
            self._built("digits", "syncrun", "bench_mnist", ["--data", data]),
            # BLAS threads that spin are very slow if other programs use the cores. A single thread may be faster.
            Program("digits", "sklearn", command, setting="all BLAS threads"),
            Program("digits", "sklearn", command, setting="1 BLAS thread",
                    environment={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
        ]


# ---- running ---------------------------------------------------------------------------------------------------------


def time_launches(program):
    samples_us = []
    for _ in range(program.timed_launches):
        start = time.perf_counter()
        _, failure = execute(program.command, PROGRAM_DEADLINE_S, program.environment)
        samples_us.append((time.perf_counter() - start) * 1e6)
        if failure:
            return [], failure
    return [{"name": "launch", "workers": 2, "median_us": statistics.median(samples_us),
             "samples": len(samples_us)}], ""


def measure(program, repetition):
    """Returns the program's measurements, and the reason if some or all are missing."""
    if program.missing:
        return [], program.missing
    if program.timed_launches:
        lines, failure = time_launches(program)
    else:
        seed = ["--seed", str(repetition)] if program.impl == "sklearn" else []
        out, failure = execute(program.command + seed, PROGRAM_DEADLINE_S, program.environment)
        try:
            lines = list(json_lines(out))
        except json.JSONDecodeError as error:
            return [], f"unreadable output: {error}"
    if not lines and not failure:
        failure = "printed no measurement"
    for line in lines:
        line.update(group=program.group, impl=program.impl, setting=program.setting, repetition=repetition)
    return lines, failure


def run_all(plan, repetitions):
    measurements, failures = [], {}
    for repetition in range(repetitions):
        for slot in plan.slots:
            for program in slot if repetition % 2 == 0 else reversed(slot):
                if repetition > 0 and program.group in ONCE:
                    continue
                lines, failure = measure(program, repetition)
                measurements += lines
                if failure:
                    failures[(program.group, program.impl)] = failure
                print(f"[{repetition + 1}/{repetitions}] {program.group} {program.impl} {program.setting}: "
                      f"{failure or f'{len(lines)} measured'}", file=sys.stderr, flush=True)
    return measurements, failures


# ---- figures ---------------------------------------------------------------------------------------------------------


class Figures:
    """Medians over repetitions, and the fastest variant of each implementation."""

    def __init__(self, measurements, failures):
        self.failures = failures
        by_variant = collections.defaultdict(list)
        for line in measurements:
            variant = ", ".join(filter(None, (line.get("variant"), line["setting"])))
            key = (line["group"], line["name"], line["impl"], line.get("workers"), line.get("bytes"))
            by_variant[key, variant].append(line)
        self.best = {}
        for (key, variant), lines in by_variant.items():
            figure = {"variant": variant, "samples": sum(line.get("samples", 0) for line in lines)}
            for field in ("median_us", "copy_us", "p99_us", "pss_bytes", "accuracy", "seconds"):
                values = [line[field] for line in lines if field in line]
                if values:
                    figure[field] = statistics.median(values)
            known = self.best.get(key)
            if known is None or self._time(figure) < self._time(known):
                self.best[key] = figure

    @staticmethod
    def _time(figure):
        return figure.get("median_us", figure.get("seconds", 0))

    def get(self, group, impl, workers, size=None, name=None):
        return self.best.get((group, name or group, impl, workers, size))

    def keys(self, group):
        """Returns (name, workers, bytes) of all measurements in this group, in order."""
        found = {(key[1], key[3], key[4]) for key in self.best if key[0] == group}
        return sorted(found, key=lambda k: (k[0], k[1] or 0, k[2] or 0))

    def why_not(self, group, impl):
        return "not run: " + self.failures.get((group, impl), "not measured")


def time_text(us):
    if us < 1e3:
        return f"{us:.2f} µs" if us < 10 else f"{us:.1f} µs"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def workers_text(workers):
    return f"{workers} worker" + ("" if workers == 1 else "s")


def size_text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def compared(figures, group, what, workers, size, impls, target_ratio, target):
    """Compares Syncrun with the fastest of `impls`. The ratio is their time divided by Syncrun's, so Syncrun is faster
    if it is above 1."""
    ours = figures.get(group, "syncrun", workers, size)
    theirs = [(figures.get(group, impl, workers, size), impl) for impl in impls]
    missing = [figures.why_not(group, impl) + f" ({impl})" for figure, impl in theirs if figure is None]
    theirs = [(f["median_us"], impl, f["variant"]) for f, impl in theirs if f is not None]
    best_text = "; ".join(missing)
    if theirs:
        us, impl, variant = min(theirs)
        best_text = f"{time_text(us)} ({impl}{': ' + variant if variant else ''})" + "".join(f"; {m}" for m in missing)
    if ours is None:
        return Row(what, figures.why_not(group, "syncrun"), best_text, "", target, "not judged")
    ours_text = time_text(ours["median_us"])
    if not theirs:
        return Row(what, ours_text, best_text, "", target, "not judged")
    ratio = min(theirs)[0] / ours["median_us"]
    verdict = "not judged: a comparator is missing" if missing and ratio >= target_ratio else \
        "met" if ratio >= target_ratio else "missed"
    return Row(what, ours_text, best_text, f"{ratio:.2f}", target, verdict)


def empty_call_rows(figures, cores):
    for _, workers, _ in figures.keys("empty_call"):
        what = f"empty call, {workers_text(workers)}"
        crowded = workers + 1 > cores
        yield compared(figures, "empty_call", what, workers, None, ["openmpi"], 2.0 if crowded else 1.0,
                       ">= 2x faster" if crowded else "not slower")
        yield compared(figures, "empty_call", what, workers, None, ["python_barrier"], 20.0, ">= 20x faster")


def all_reduce_rows(figures):
    for _, workers, size in figures.keys("all_reduce"):
        if size <= 16 * KIB:
            ratio, target = 1 / 1.1, "within 1.1x"
        elif size >= 64 * MIB:
            ratio, target = 4.0, ">= 4x faster"
        else:
            ratio, target = 1.0, "faster"
        yield compared(figures, "all_reduce", f"all_reduce, {workers_text(workers)}, {size_text(size)}", workers, size,
                       ["openmpi", "gloo"], ratio, target)


def fixed_row(figures, group, what, figure, field, text, good, target):
    if figure is None or field not in figure:
        return Row(what, figures.why_not(group, "syncrun"), "", "", target, "not judged")
    return Row(what, text(figure[field]), "", "", target, "met" if good(figure[field]) else "missed")


def ours_in(figures, group):
    """Returns Syncrun's figures in this group. If there are none, returns one None, so that the group has a row too."""
    found = [(name, workers, figures.get(group, "syncrun", workers, size, name))
             for name, workers, size in figures.keys(group)]
    return [entry for entry in found if entry[2] is not None] or [(group, None, None)]


def kill_rows(figures):
    for name, workers, figure in ours_in(figures, "kill"):
        of = f", {workers_text(workers)}" if workers else ""
        row = fixed_row(figures, "kill", f"{name.replace('_', ' ')} to release, 1 GiB resident, p99{of}", figure,
                        "p99_us", time_text, lambda us: us <= 10e3, "<= 10 ms")
        if figure is not None and figure["samples"] < 100:
            row.verdict = f"not judged: {figure['samples']} kills of 100"
        yield row


def launch_rows(figures):
    figure = figures.get("launch", "syncrun", 2)
    yield fixed_row(figures, "launch", "launch: `syncrun -n 2`, empty program, start to exit", figure, "median_us",
                    time_text, lambda us: us <= 100e3, "<= 100 ms")


def memory_rows(figures):
    for _, _, figure in ours_in(figures, "memory"):
        yield fixed_row(figures, "memory", "1 GiB Data broadcast to 8 workers, PSS of the job", figure, "pss_bytes",
                        lambda b: f"{b / GIB:.3f} GiB", lambda b: b <= 1.1 * GIB, "<= 1.1 GiB")


def update_rows(figures):
    for _, workers, figure in ours_in(figures, "update"):
        of = f", {workers_text(workers)}" if workers else ""
        row = fixed_row(figures, "update", f"adam, 25 M float32 parameters{of}", figure, "copy_us", time_text,
                        lambda us: figure["median_us"] <= us / 0.85, ">= 85 % of a copy's bytes per second")
        if figure is not None and "copy_us" in figure:
            row.ours, row.theirs = time_text(figure["median_us"]), f"{time_text(figure['copy_us'])} (copy)"
            row.ratio = f"{figure['copy_us'] / figure['median_us']:.2f}"
        yield row


def digits_rows(figures):
    for _, workers, figure in ours_in(figures, "digits"):
        of = f", {workers_text(workers)}" if workers else ""
        row = fixed_row(figures, "digits", f"MLP on digits, test accuracy{of}", figure, "accuracy",
                        lambda a: f"{100 * a:.2f} %", lambda a: a >= 0.975, ">= 97.5 %")
        seconds = Row(f"MLP on digits, seconds{of}", row.ours, figures.why_not("digits", "sklearn"), "", "none",
                      "not judged")
        if figure is not None and "seconds" in figure:
            seconds.ours = f"{figure['seconds']:.2f} s"
        sklearn = figures.get("digits", "sklearn", 1)
        row.theirs = figures.why_not("digits", "sklearn")
        if sklearn is not None:
            row.theirs = f"{100 * sklearn['accuracy']:.2f} % (sklearn)"
            seconds.theirs = f"{sklearn['seconds']:.2f} s (sklearn: {sklearn['variant']})"
            if figure is not None and "seconds" in figure:
                seconds.ratio = f"{sklearn['seconds'] / figure['seconds']:.2f}"
        yield from (row, seconds)


def all_rows(figures, groups, cores):
    rows = {
        "empty_call": lambda: empty_call_rows(figures, cores),
        "all_reduce": lambda: all_reduce_rows(figures),
        "kill": lambda: kill_rows(figures),
        "launch": lambda: launch_rows(figures),
        "memory": lambda: memory_rows(figures),
        "update": lambda: update_rows(figures),
        "digits": lambda: digits_rows(figures),
    }
    return [row for group in groups for row in rows[group]()]


# ---- reporting -------------------------------------------------------------------------------------------------------


def markdown(about, rows, failures):
    yield (f"{about['machine']['cpu']}, {about['machine']['cores']} cores, Linux {about['machine']['kernel']}, "
           f"load {about['machine']['load_at_start']} at start; {about['date']}; commit {about['commit']}; "
           f"medians over {about['repetitions']} repetitions"
           + ("; **quick run: not for publication**" if about["quick"] else "") + ".")
    yield ""
    yield "Ratio: the comparator's time over ours; above 1, Syncrun is faster."
    yield ""
    yield "| measurement | Syncrun | comparator | ratio | target | result |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield "| " + " | ".join(text.replace("|", "/") for text in dataclasses.astuple(row)) + " |"
    if failures:
        yield ""
        yield "Not run, or not completely (the last reason of each):"
        yield ""
        yield from (f"- {group}, {impl}: {why}" for (group, impl), why in failures.items())


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="CMake build directory")
    parser.add_argument("--quick", action="store_true", help="one repetition, fewer workers and sizes")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(GROUPS),
                        help="comma-separated: " + ", ".join(GROUPS))
    parser.add_argument("--repetitions", type=int, help="default 5, or 1 with --quick")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file (default: bench_cpu.json in BUILD)")
    parser.add_argument("--data", type=pathlib.Path, default=HERE.parent / "data" / "digits")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has scikit-learn")
    options = parser.parse_args()
    unknown = set(options.only) - set(GROUPS)
    if unknown:
        parser.error(f"--only: no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if not options.build.is_dir():
        parser.error(f"no build directory {options.build}")
    if options.repetitions is None:
        options.repetitions = 1 if options.quick else 5
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    options.output = options.output or options.build / "bench_cpu.json"
    return options


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the exception stops the program that runs
    about = {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "repetitions": options.repetitions,
        "quick": options.quick,
    }
    plan = Plan(options)
    measurements, failures = run_all(plan, options.repetitions)
    rows = all_rows(Figures(measurements, failures), options.only, plan.cores)
    options.output.write_text(json.dumps({
        **about,
        "table": [dataclasses.asdict(row) for row in rows],
        "failures": [{"group": group, "impl": impl, "why": why} for (group, impl), why in failures.items()],
        "measurements": measurements,
    }, indent=1) + "\n")
    print("\n".join(markdown(about, rows, failures)))


if __name__ == "__main__":
    main()

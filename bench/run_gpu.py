#!/usr/bin/env python3
"""Runs Syncrun's benchmarks on GPUs and the programs they are compared with, and reports which targets are met.

    bench/run_gpu.py build/cuda                         # 1, 2, 4 and 8 GPUs as far as present
    bench/run_gpu.py build/cuda --devices 1 --quick --only call,scatter

Syncrun's programs and the comparators take turns within one run, several times and in alternating order. A figure is
the median over the repetitions of the median that a program prints. If a comparator has several settings, the fastest
counts. If a program fails, is missing or takes too long, its row says so, and the other programs still run. The script
does not change the settings of GPUs and NCCL.

Every program prints one JSON object per line: "bench", "impl", "devices", "what" and "median_us" (or "gb_per_s", or
"result_at_ns" on the monotonic clock). The script compares lines with the same bench, devices and what.
`bench_mnist_step` measures the step of MNIST, `bench_resnet_step` that of ResNet-50, and `bench_gpt_step` and
`bench_resnet_modules` those of models of LibTorch. They are skipped if they are not built.

Requires only Python's standard library. --python is an interpreter that has PyTorch.
"""

import argparse
import collections
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

from gpu_groups import GROUPS, target_ratio
from programs import commit, execute, find_executable, json_lines, machine

HERE = pathlib.Path(__file__).resolve().parent
COMPARATORS = HERE / "comparators"
AS_NODE = HERE.parent / "tests" / "nodes" / "as_node.sh"
DEVICE_COUNTS = (1, 2, 4, 8)
GIB, MIB = 1 << 30, 1 << 20


@dataclasses.dataclass
class Program:
    group: str
    impl: str
    devices: int
    command: list
    missing: str = ""  # why it cannot run; empty if it can


@dataclasses.dataclass
class Row:
    benchmark: str
    devices: str
    ours: str
    comparator: str
    ratio: str
    target: str
    result: str


# ---- what to run -----------------------------------------------------------------------------------------------------


class Plan:
    """The programs to run, in slots. The programs of a slot are compared, so they run directly after each other, in
    alternating order."""

    def __init__(self, options):
        self.options = options
        self.seconds = "0.2" if options.quick else "0.5"
        self.syncrun = find_executable(options.build, "syncrun")
        self.torch_missing = "" if has_torch(options.python) else f"{options.python} has no PyTorch"
        self.notes = []
        self.slots = []
        for devices in options.devices:
            for name in options.only:
                if not GROUPS[name].fewest_devices <= devices <= GROUPS[name].most_devices:
                    continue
                self.slots.append(list(getattr(self, name)(devices)))

    def _ours(self, group, devices, name, *arguments):
        path = find_executable(self.options.build, name)
        missing = "" if path and self.syncrun else f"no {name if self.syncrun else 'syncrun'} in the build directory"
        return Program(group, "syncrun", devices, [self.syncrun, "-n", str(devices), path, *arguments], missing)

    def _built(self, group, impl, devices, name, *arguments):
        path = find_executable(self.options.build, name)
        return Program(group, impl, devices, [path, "--workers", str(devices), *arguments],
                       "" if path else f"no {name} in the build directory")

    def _torchrun(self, group, impl, devices, script, *arguments):
        # The module that the command torchrun runs, with the interpreter of --python. Each run has a port of its own.
        command = [self.options.python, "-m", "torch.distributed.run", "--nproc-per-node", str(devices),
                   "--master-addr", "127.0.0.1", "--master-port", "{port}", str(COMPARATORS / script), *arguments]
        return Program(group, impl, devices, command, self.torch_missing)

    def _ours_on_nodes(self, group, devices, name, *arguments):
        path = find_executable(self.options.build, name)
        missing = "" if path and self.syncrun else f"no {name if self.syncrun else 'syncrun'} in the build directory"
        mpirun = ["env", f"GPUS_PER_NODE={devices // 2}", "OMPI_ALLOW_RUN_AS_ROOT=1",
                  "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2",
                  str(AS_NODE)]
        return Program(group, "syncrun", devices, [*mpirun, self.syncrun, path, *arguments], missing or why_no_nodes())

    def _torchrun_on_nodes(self, group, devices, script, *arguments):
        command = ["env", f"GPUS_PER_NODE={devices // 2}", str(COMPARATORS / "torchrun_on_nodes.sh"),
                   self.options.python, "{port}", str(COMPARATORS / script), *arguments]
        return Program(group, "torch_ddp", devices, command, self.torch_missing or why_no_nodes())

    def call(self, devices):
        yield self._ours("call", devices, "bench_gpu_call", "--seconds", self.seconds)

    def scatter(self, devices):
        yield self._ours("scatter", devices, "bench_gpu_scatter", "--seconds", self.seconds, "contiguous")
        yield self._built("scatter", "pinned_copy", devices, "pinned_copy", "--seconds", self.seconds)

    def shuffle(self, devices):
        yield self._ours("shuffle", devices, "bench_gpu_scatter", "--seconds", self.seconds, "shuffled")
        yield self._built("shuffle", "host_gather", devices, "host_gather", "--seconds", self.seconds)

    def all_reduce(self, devices):
        sizes = ["--seconds", "0.1" if self.options.quick else "0.3",
                 "--max-bytes", str(32 * MIB if self.options.quick else GIB)]
        yield self._ours("all_reduce", devices, "bench_gpu_all_reduce", *sizes)
        yield self._built("all_reduce", "nccl", devices, "nccl_all_reduce", *sizes)

    def launch(self, devices):
        yield self._ours("launch", devices, "bench_gpu_launch")
        yield self._ours("launch", devices, "bench_gpu_launch_step")
        yield self._torchrun("launch", "torchrun", devices, "torch_launch.py")

    def update(self, devices):
        yield self._ours("update", devices, "bench_gpu_update", "--seconds", self.seconds)

    def values(self, devices):
        yield self._ours("values", devices, "bench_gpu_values", "--seconds", self.seconds)
        yield self._built("values", "one_process", devices, "gpu_one_process", "--seconds", self.seconds)

    def mnist(self, devices):
        batches, dtypes = (("500",), ("float32",)) if self.options.quick else (("500", "4000"), ("float32", "tf32"))
        steps = "100" if self.options.quick else "300"
        if not find_executable(self.options.build, "bench_mnist_step"):
            note = "MNIST step: skipped, no bench_mnist_step in the build directory"
            self.notes += [] if note in self.notes else [note]
            return
        for batch in batches:
            for dtype in dtypes:
                yield self._ours("mnist", devices, "bench_mnist_step", "--batch", batch, "--steps", steps,
                                 *(["--tf32"] if dtype == "tf32" else []))
        settings = ["--batch", ",".join(batches), "--dtype", ",".join(dtypes), "--steps", steps]
        ddp_modes = "eager,compile,compile-graphs" if self.options.thorough else "eager,compile"
        graph_modes = "eager,compile" if self.options.thorough else "eager"
        yield self._torchrun("mnist", "torch_ddp", devices, "torch_mnist_ddp.py", *settings, "--mode", ddp_modes)
        yield self._torchrun("mnist", "torch_graph", devices, "torch_mnist_graph.py", *settings, "--mode", graph_modes)


    def resnet(self, devices):
        if not find_executable(self.options.build, "bench_resnet_step"):
            note = "ResNet-50 step: skipped, no bench_resnet_step in the build directory"
            self.notes += [] if note in self.notes else [note]
            return
        for batch in ("256", "32"):
            yield self._ours("resnet", devices, "bench_resnet_step", "--batch", batch,
                             "--feed", "shuffled,mapped,synthetic")
        # One run for each mode: compiling takes so long that a program with all modes would reach its deadline.
        for mode in ("eager",) if self.options.quick else ("eager", "compile", "reduce-overhead"):
            yield self._torchrun("resnet", "torch_ddp", devices, "torch_resnet.py", "--batch", "256,32", "--mode", mode)


    def resnet_modules(self, devices):
        if not find_executable(self.options.build, "bench_resnet_modules"):
            note = "ResNet-50 of LibTorch's modules: skipped, no bench_resnet_modules in the build directory"
            self.notes += [] if note in self.notes else [note]
            return
        yield self._ours("resnet_modules", devices, "bench_resnet_modules", "--rows", "256,32")
        yield self._torchrun("resnet_modules", "torch_ddp", devices, "torch_resnet.py", "--batch", "256,32", "--mode",
                             "eager")

    def gpt(self, devices):
        if not find_executable(self.options.build, "bench_gpt_step"):
            note = "GPT step: skipped, no bench_gpt_step in the build directory"
            self.notes += [] if note in self.notes else [note]
            return
        for model, rows in (("tiny", "64"), ("small", "64"), ("medium", "64"), ("gpt2", "32,8")):
            settings = ["--model", model, "--rows", rows]
            yield self._ours("gpt", devices, "bench_gpt_step", *settings)
            yield self._torchrun("gpt", "torch_eager", devices, "torch_gpt.py", *settings, "--mode", "eager")
            if not self.options.quick:
                mode = "compile" if model == "gpt2" else "reduce-overhead"
                yield self._torchrun("gpt", "torch_compile", devices, "torch_gpt.py", *settings, "--mode", mode)

    def nodes_all_reduce(self, devices):
        sizes = ["--seconds", "0.1" if self.options.quick else "0.3",
                 "--max-bytes", str((32 if self.options.quick else 256) * MIB)]
        yield self._ours_on_nodes("nodes_all_reduce", devices, "bench_gpu_all_reduce", *sizes)
        nccl = self._built("nodes_all_reduce", "nccl", devices, "nccl_all_reduce", "--nodes", "2", *sizes)
        yield dataclasses.replace(nccl, command=["env", "NCCL_SOCKET_IFNAME=lo", *nccl.command])

    def nodes_mnist(self, devices):
        settings = ["--batch", "500", "--steps", "100"]
        yield self._ours_on_nodes("nodes_mnist", devices, "bench_mnist_step", *settings)
        yield self._torchrun_on_nodes("nodes_mnist", devices, "torch_mnist_ddp.py", *settings, "--dtype", "float32",
                                      "--mode", "eager")

    def nodes_resnet(self, devices):
        batches = ("32",) if self.options.quick else ("256", "32")
        for batch in batches:
            yield self._ours_on_nodes("nodes_resnet", devices, "bench_resnet_step", "--batch", batch,
                                      "--feed", "shuffled")
        yield self._torchrun_on_nodes("nodes_resnet", devices, "torch_resnet.py", "--batch", ",".join(batches),
                                      "--mode", "eager")


def why_no_nodes():
    """Why two nodes cannot be made on this machine. Empty if they can."""
    missing = [tool for tool in ("mpirun", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return "not installed: " + ", ".join(missing)
    return "" if os.geteuid() == 0 else "two nodes on one machine require root"


def has_torch(python):
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([python, "-c", look], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def present_gpus():
    """Returns the number of GPUs that a program sees now, counted as Syncrun counts them."""
    physical = sum(1 for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or physical == 0:
        return physical
    count = 0
    for entry in visible.split(","):
        if not (entry.startswith(("GPU-", "MIG-")) or (entry.isdecimal() and int(entry) < physical)):
            break
        count += 1
    return count


# ---- running ---------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def normalized(line, program, repetition, started_ns):
    """Yields the measurements in a line of a program. Fills in missing fields, and computes the time of a launch. A
    step of MNIST may have two times."""
    line = {"impl": program.impl, "devices": program.devices, "variant": "", **line, "group": program.group,
            "repetition": repetition}
    if line["bench"] == "mnist_step":
        line["what"] = f"batch {line['batch']}, {line['dtype']}"
        yield line
        if "median_us_async" in line:
            yield {**line, "what": f"{line['what']}, not waited for", "median_us": line["median_us_async"]}
    elif line["bench"] == "resnet_step":
        # PyTorch's batch is already on the GPU. It is compared with Syncrun's slower feed, by shuffled index.
        feed = "" if line.get("feed", "shuffled") == "shuffled" else f", {line['feed']}"
        yield {**line, "what": f"{line['batch']} rows a GPU, {line['dtype']}{feed}"}
    elif line["bench"] == "gpt_step":
        what = f"{line['model']}, {line['rows']} rows a GPU, {line['dtype']}"
        yield {**line, "impl": program.impl, "variant": "", "what": what}
    elif "result_at_ns" in line:
        line["median_us"] = (line["result_at_ns"] - started_ns) / 1e3
        # PyTorch has one first result. It is compared with each of Syncrun's.
        whats = [line["what"]] if line["impl"] == "syncrun" else ["first call", "first all_reduce", "first step"]
        yield from ({**line, "what": what} for what in whats)
    else:
        yield line


def measure(program, repetition, deadline_s):
    """Returns the program's measurements, and the reason if some or all are missing."""
    if program.missing:
        return [], program.missing
    port = str(free_port())
    os.environ["BENCH_STARTED_NS"] = str(time.time_ns())
    started_ns = time.monotonic_ns()
    out, failure = execute([port if part == "{port}" else part for part in program.command], deadline_s)
    lines = []
    try:
        for line in json_lines(out):
            if "failed" in line:
                failure = failure or line["failed"]
            elif line.get("bench") == GROUPS[program.group].bench:
                lines += normalized(line, program, repetition, started_ns)
    except (json.JSONDecodeError, KeyError) as error:
        return lines, f"unreadable output: {type(error).__name__}: {error}"
    if not lines and not failure:
        failure = "printed no measurement"
    return lines, failure


class Run:
    """The measurements and failures so far. They are complete even if the run is interrupted."""

    def __init__(self, plan, options):
        self.plan, self.options = plan, options
        self.measurements, self.failures = [], {}
        self.cut_short = ""

    def run(self):
        end = time.monotonic() + self.options.time_limit if self.options.time_limit else None
        for repetition in range(self.options.repetitions):
            for slot in self.plan.slots:
                for program in slot if repetition % 2 == 0 else reversed(slot):
                    if end and time.monotonic() > end:
                        self.cut_short = f"stopped after {self.options.time_limit} s"
                        self.failures.setdefault(self._key(program), "not run: out of time")
                        continue
                    self._run_one(program, repetition)

    @staticmethod
    def _key(program):
        return program.group, program.devices, program.impl

    def _run_one(self, program, repetition):
        lines, failure = measure(program, repetition, self.options.timeout)
        self.measurements += lines
        if failure:
            self.failures[self._key(program)] = f"failed: {failure}" if not program.missing else f"not run: {failure}"
        print(f"[{repetition + 1}/{self.options.repetitions}] {program.group}, {program.devices} GPUs, {program.impl}: "
              f"{failure or f'{len(lines)} measured'}", file=sys.stderr, flush=True)


# ---- figures ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Figure:
    """The median over repetitions of an implementation's fastest variant."""
    value: float  # GB/s if is_rate, otherwise microseconds
    is_rate: bool
    variant: str = ""
    p90_us: float | None = None

    def speed(self):
        return self.value if self.is_rate else 1 / self.value

    def text(self):
        return f"{self.value:.1f} GB/s" if self.is_rate else time_text(self.value)


def time_text(us):
    if us < 1e3:
        return f"{us:.2f} µs" if us < 10 else f"{us:.1f} µs"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


class Figures:
    def __init__(self, measurements):
        by_variant = collections.defaultdict(list)
        self.whats = collections.defaultdict(dict)  # by group and number of devices, in order of appearance
        for line in measurements:
            place = (line["group"], line["devices"])
            self.whats[place].setdefault(line["what"])
            by_variant[(*place, line["what"], line["impl"], line["variant"])].append(line)
        self.best = {}
        for (*key, variant), lines in by_variant.items():
            figure = self._figure(lines, variant)
            known = self.best.get(tuple(key))
            if known is None or figure.speed() > known.speed():
                self.best[tuple(key)] = figure

    @staticmethod
    def _figure(lines, variant):
        is_rate = "gb_per_s" in lines[0]
        value = statistics.median(line["gb_per_s" if is_rate else "median_us"] for line in lines)
        p90 = statistics.median(line["p90_us"] for line in lines) if all("p90_us" in line for line in lines) else None
        return Figure(value, is_rate, variant, p90)

    def get(self, group, devices, what, impl):
        return self.best.get((group, devices, what, impl))


def call_rows(figures, devices, why_not):
    figure = figures.get("call", devices, "empty call", "syncrun")
    if figure is None:
        return [Row("empty call", str(devices), why_not("syncrun"), "", "", "p50 <= 6 µs", "not judged")]
    ours = figure.text() + (f" (p90 {time_text(figure.p90_us)})" if figure.p90_us else "")
    return [Row("empty call", str(devices), ours, "", "", "p50 <= 6 µs", "met" if figure.value <= 6 else "missed")]


def chain_row(figures, devices, what, why_not):
    figure = figures.get("values", devices, what, "syncrun")
    row = Row(f"Values, {what}", str(devices), why_not("syncrun"), "", "", "<= 25 µs", "not judged")
    if figure is not None:
        row.ours, row.result = figure.text(), "met" if figure.value <= 25 else "missed"
    theirs = figures.get("values", devices, what, "one_process")
    if theirs is not None:
        row.comparator = f"{theirs.text()} (one_process)"
        row.ratio = f"{figure.speed() / theirs.speed():.2f}" if figure is not None else ""
    return row


def is_compared(figures, group, devices, what, comparator):
    """Whether this measurement has this comparator. Some have only some of the comparators of their group."""
    is_always = group != "values" and comparator not in ("nccl_parts", "nccl_leaders")
    return is_always or figures.get(group, devices, what, comparator) is not None


def compared(figures, group, devices, what, comparator, why_not):
    """Returns a row of the table. The ratio says how many times as fast as the comparator Syncrun is."""
    wanted = target_ratio(group, what, comparator, devices)
    target = "" if wanted is None else f">= {wanted:g}x"
    ours, theirs = (figures.get(group, devices, what, impl) for impl in ("syncrun", comparator))
    named = f"{comparator}: {theirs.variant}" if theirs and theirs.variant else comparator
    row = Row(f"{GROUPS[group].title} {what}", str(devices), ours.text() if ours else why_not("syncrun"),
              f"{theirs.text() if theirs else why_not(comparator)} ({named})", "", target, "not judged")
    if ours and theirs:
        ratio = ours.speed() / theirs.speed()
        row.ratio = f"{ratio:.2f}"
        row.result = "" if wanted is None else "met" if ratio >= wanted else "missed"
    return row


def all_rows(figures, failures, slots):
    for group, devices in dict.fromkeys((p.group, p.devices) for slot in slots for p in slot):

        def why_not(impl, place=(group, devices)):
            impl = impl.removesuffix("_registered")  # the same program
            return failures.get((*place, impl), "not measured")

        if group == "call":
            yield from call_rows(figures, devices, why_not)
            continue
        for what in figures.whats[group, devices] or [f"({group})"]:
            if what.startswith("chain"):
                yield chain_row(figures, devices, what, why_not)
                continue
            for comparator in GROUPS[group].comparators:
                if is_compared(figures, group, devices, what, comparator):
                    yield compared(figures, group, devices, what, comparator, why_not)


# ---- reporting -------------------------------------------------------------------------------------------------------


def gpus():
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    asked = subprocess.run([tool, "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True, check=False)
    return asked.stdout.strip().splitlines() if asked.returncode == 0 else []


def markdown(about, rows, failures, notes):
    names = collections.Counter(about["gpus"]) or {"no GPU that nvidia-smi knows": 1}
    host = about["machine"]
    yield (", ".join(f"{count} x {name}" for name, count in names.items())
           + f"; {host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, load {host['load_at_start']} at start; "
           f"{about['date']}; commit {about['commit']}; medians over {about['repetitions']} repetitions"
           + ("; **quick run: not for publication**" if about["quick"] else "")
           + (f"; **{about['cut_short']}**" if about["cut_short"] else "") + ".")
    if about["environment"]:
        yield "With " + ", ".join(f"`{name}={value}`" for name, value in about["environment"].items()) + "."
    yield ""
    if failures:
        yield "Not run, or not completely (the last reason of each):"
        yield ""
        yield from (f"- {group}, {devices} GPUs, {impl}: {why}" for (group, devices, impl), why in failures.items())
        yield ""
    yield from (line for note in notes for line in (note, ""))
    yield "Ratio: how many times as fast as the comparator; above 1, Syncrun is faster."
    yield ""
    yield "| benchmark | GPUs | Syncrun | comparator | ratio | target | result |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        yield "| " + " | ".join(text.replace("|", "/") for text in dataclasses.astuple(row)) + " |"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="CMake build directory")
    parser.add_argument("--devices", type=lambda text: [int(n) for n in text.split(",")],
                        help="counts of GPUs, comma-separated (default: 1,2,4,8 as far as present)")
    parser.add_argument("--quick", action="store_true", help="one repetition, fewer sizes and settings, shorter loops")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(GROUPS),
                        help="comma-separated: " + ", ".join(GROUPS))
    parser.add_argument("--thorough", action="store_true", help="more settings of PyTorch, each compiled: minutes each")
    parser.add_argument("--repetitions", type=int, help="default 3, or 1 with --quick")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one program may take (default: 300)")
    parser.add_argument("--time-limit", type=float, help="start no program after this many seconds")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file (default: bench_gpu.json in BUILD)")
    parser.add_argument("--python", default=None, help="interpreter that has PyTorch (default: this one, or python3)")
    options = parser.parse_args()
    unknown = set(options.only) - set(GROUPS)
    if unknown:
        parser.error(f"--only: no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if not options.build.is_dir():
        parser.error(f"no build directory {options.build}")
    if options.devices is None:
        present = present_gpus()
        options.devices = [count for count in DEVICE_COUNTS if count <= present]
        if not options.devices:
            parser.error("there is no GPU on this machine (no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides it)")
    if min(options.devices) < 1:
        parser.error("--devices: counts start at 1")
    options.repetitions = options.repetitions or (1 if options.quick else 3)
    if options.python is None:
        options.python = sys.executable if has_torch(sys.executable) else shutil.which("python3") or sys.executable
    options.output = options.output or options.build / "bench_gpu.json"
    return options


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the exception stops the program that runs
    about = {
        "machine": machine(),
        "gpus": gpus(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("NCCL_", "CUDA_V"))},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "repetitions": options.repetitions,
        "quick": options.quick,
    }
    plan = Plan(options)
    run = Run(plan, options)
    code = 0
    try:
        run.run()
    except (KeyboardInterrupt, SystemExit):  # the measurements until then are still reported
        run.cut_short, code = "interrupted", 1
    about["cut_short"] = run.cut_short
    rows = list(all_rows(Figures(run.measurements), run.failures, plan.slots))
    options.output.write_text(json.dumps({
        **about,
        "table": [dataclasses.asdict(row) for row in rows],
        "failures": [{"group": group, "devices": devices, "impl": impl, "why": why}
                     for (group, devices, impl), why in run.failures.items()],
        "measurements": run.measurements,
        "notes": plan.notes,
    }, indent=1) + "\n")
    print("\n".join(markdown(about, rows, run.failures, plan.notes)))
    return code


if __name__ == "__main__":
    sys.exit(main())

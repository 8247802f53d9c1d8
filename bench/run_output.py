#!/usr/bin/env python3
"""Compares how fast launchers pass the output of four processes on: 1 GB in lines of 100 bytes, in turn.

usage: run_output.py BUILD [--before FOLDER] [--rounds N] [--bytes N] [--line-bytes N] [--to null|pipe|file]
--before: a folder with bin/syncrun and lib/ of an earlier build, which runs without the new options. mpirun (Open MPI) and
torchrun run if they are in PATH. Prints the median and the range of MB/s, and the CPU time of all processes. A rate counts
the bytes that the processes write, without tags.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

PROCESSES = 4


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--line-bytes", type=int, default=100)
    parser.add_argument("--to", choices=("null", "pipe", "file"), default="null")
    parser.add_argument("--only", default="", help="a word in the names of those that run")
    return parser.parse_args()


def launchers(options: argparse.Namespace) -> dict[str, tuple[list[str], dict[str, str]]]:
    program = str(options.build / "bench/bench_output")
    share = [program, str(options.bytes // PROCESSES), str(options.line_bytes), "alone"]
    own = [program, str(options.bytes), str(options.line_bytes)]
    devices = ["--devices", ",".join(f"cpu{rank}" for rank in range(PROCESSES)), "--quiet"]
    all_of = {
        "syncrun": ([str(options.build / "bin/syncrun"), *devices, *own], {}),
        "syncrun --timestamps": ([str(options.build / "bin/syncrun"), *devices, "--timestamps", *own], {}),
        "syncrun --no-tag": ([str(options.build / "bin/syncrun"), *devices, "--no-tag", *own], {}),
    }
    if options.before:
        library = {"LD_LIBRARY_PATH": str(options.before / "lib")}
        all_of["syncrun before"] = ([str(options.before / "bin/syncrun"), *devices, *own], library)
    if shutil.which("mpirun"):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(PROCESSES)]
        all_of["mpirun --tag-output"] = ([*mpirun, "--tag-output", *share], {})
        all_of["mpirun --tag-output --timestamp-output"] = (
            [*mpirun, "--tag-output", "--timestamp-output", *share], {})
    if shutil.which("torchrun"):
        all_of["torchrun --tee 1"] = (["torchrun", "--no_python", "--nproc_per_node", str(PROCESSES), "--log_dir",
                                       "/dev/shm/torchrun_output", "--redirects", "1", "--tee", "1", *share], {})
    return {name: each for name, each in all_of.items() if options.only in name}


def run(command: list[str], variables: dict[str, str], to: str) -> tuple[float, float]:
    """The seconds of the run, and the CPU seconds of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    environment = {**os.environ, **variables}
    if to == "pipe":
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as launcher:
            subprocess.run(["cat"], stdin=launcher.stdout, stdout=subprocess.DEVNULL, check=True)
        code = launcher.returncode
    else:
        with open("/dev/null" if to == "null" else "/dev/shm/run_output", "wb") as target:
            code = subprocess.run(command, stdout=target, env=environment).returncode
    seconds = time.monotonic() - begin
    if code != 0:
        raise SystemExit(f"{command}: exit code {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options = parse()
    commands = launchers(options)
    rates: dict[str, list[float]] = {name: [] for name in commands}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, (command, variables) in commands.items():
            seconds, cpu_seconds = run(command, variables, options.to)
            rates[name].append(options.bytes / seconds / 1e6)
            times[name].append(cpu_seconds)
    for name in commands:
        print(f"{name:40} to {options.to}: {statistics.median(rates[name]):6.0f} MB/s ({min(rates[name]):.0f} to "
              f"{max(rates[name]):.0f}), CPU {statistics.median(times[name]):.2f} s ({min(times[name]):.2f} to "
              f"{max(times[name]):.2f})")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests of `syncrun doctor`, `--bind-to` and `syncrun top` with GPUs: with one, and with two if two are visible."""

import argparse
import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

SKIP_CODE = 77
RUN_LIMIT_S = 150
LOOK_LIMIT_S = 60  # another program may use the GPUs too
SYSTEM = Path("/sys/devices/system")
options = None


def gpu_addresses():
    """The addresses on the PCI bus of the GPUs that programs see, in their order, as folders in /sys have them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    gpus = [line.split(", ") for line in done.stdout.splitlines()]
    if visible is not None:
        gpus = [gpu for name in visible.split(",") for gpu in gpus if name in gpu[:2]]
    return [address[-12:].lower() for _, _, address in gpus]


def cores_in(text):
    """The cores of a list such as "0-2,8"."""
    ranges = [(part + "-" + part).split("-")[:2] for part in text.strip().split(",") if part]
    return {core for first, last in ranges for core in range(int(first), int(last) + 1)}


def cores_near(address):
    """The cores near a GPU, of those that this process may use."""
    usable = os.sched_getaffinity(0)
    folder = Path("/sys/bus/pci/devices") / address / "local_cpulist"
    if len(list(SYSTEM.glob("node/node[0-9]*"))) < 2 or not folder.exists():
        return usable
    return cores_in(folder.read_text()) & usable or usable


class CommandOnGpus(unittest.TestCase):
    def setUp(self):
        self.gpus = gpu_addresses()[:2]
        self.assertTrue(self.gpus, "no GPU of nvidia-smi is one of CUDA_VISIBLE_DEVICES")
        self.devices = ",".join(f"cuda{i}" for i in range(len(self.gpus)))

    def run_command(self, *words):
        return subprocess.run([options.syncrun, *words], capture_output=True, text=True, timeout=RUN_LIMIT_S)

    def test_the_doctor_measures_each_gpu_and_finds_nothing_wrong(self):
        done = self.run_command("doctor")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        patterns = ["memory of all GPUs +[0-9.]+ GB/s", "matrix product, all ranks +[0-9.]+ GFLOP/s", "doctor: nothing is wrong"]
        for i in range(len(self.gpus)):
            patterns += [rf"GPU {i} +\S.*, compute capability \d", rf"host to cuda{i} +[0-9.]+ GB/s"]
        if len(self.gpus) > 1:
            patterns += ["GPU 0 to others +- (NVLink|[A-Z]+)", "host to all GPUs at once +[0-9.]+ GB/s"]
        for pattern in patterns:
            self.assertRegex(done.stdout, pattern)

    def test_workers_are_bound_to_the_cores_near_their_gpu(self):
        # The program ends at once, because its arguments are wrong. Its workers have started.
        done = self.run_command("--quiet", "--report-bindings", "--bind-to", "device", "--devices", self.devices,
                                options.probe)  # fmt: skip
        for i, address in enumerate(self.gpus):
            line = re.search(rf"rank {i} on cuda{i}: cores? ([0-9,-]+)(.*)\n", done.stderr)
            self.assertIsNotNone(line, done.stderr)
            self.assertEqual(cores_in(line[1]), cores_near(address), line[0])
            is_all = cores_near(address) == os.sched_getaffinity(0)
            self.assertEqual("all that the job may use" in line[2], is_all, line[0])

    def test_top_shows_how_busy_each_gpu_is(self):
        job = subprocess.Popen([options.syncrun, "--devices", self.devices, options.program], stdout=subprocess.PIPE)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.wait, RUN_LIMIT_S)
        self.addCleanup(job.terminate)
        self.assertEqual(job.stdout.readline(), b"busy\n")
        end = time.monotonic() + LOOK_LIMIT_S
        rows = [rf" {i} +\d+  cuda{i} .* [1-9]\d*%\n" for i in range(len(self.gpus))]
        text = ""
        # The driver's figure is that of the last second or part of it.
        while not all(re.search(row, text) for row in rows) and time.monotonic() < end:
            text = self.run_command("top", "--once", "--pid", str(job.pid)).stdout
        for row in rows:
            self.assertRegex(text, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--syncrun", required=True)
    parser.add_argument("--probe", required=True, help="syncrun-probe")
    parser.add_argument("--program", required=True, help="a program that keeps its GPUs busy")
    options = parser.parse_args()
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not list(Path("/dev").glob("nvidia[0-9]*")):
        print("skipped: there is no GPU that this test may use", file=sys.stderr)
        sys.exit(SKIP_CODE)
    unittest.main(argv=sys.argv[:1], verbosity=2)

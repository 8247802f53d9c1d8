#!/usr/bin/env python3
"""Tests bench/run_gpu.py without a GPU. Scripted programs stand in for the benchmarks. The table contains what they
print.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RUNNER = Path(__file__).resolve().parents[2] / "bench" / "run_gpu.py"

SYNCRUN = """#!/bin/sh
# -n N program arguments
export N=$2
shift 2
exec "$@"
"""
PYTHON = """#!/bin/sh
# Stands in for an interpreter that has PyTorch.
[ "$1" = -c ] && exit 0
case "$*" in
  *"{port}"*) echo "no port was filled in" >&2; exit 9 ;;
  *torch_launch.py*) echo '{"bench": "gpu_launch", "what": "first step", "result_at_ns": '"$NOW_PLUS_9_S"'}' ;;
  *torch_mnist_ddp.py*)
    echo 'a warning of some library'
    echo '{"bench": "mnist_step", "batch": 500, "dtype": "float32", "variant": "eager", "median_us": 900}'
    echo '{"bench": "mnist_step", "batch": 500, "dtype": "float32", "variant": "compile", "median_us": 800}' ;;
  *torch_mnist_graph.py*)
    echo 'Traceback' >&2
    echo '[rank1]: RuntimeError: no graph today' >&2
    echo 'torchrun says much more' >&2
    exit 1 ;;
esac
"""


def printing(*lines, then=""):
    return "#!/bin/sh\n" + "".join(f"echo '{json.dumps(line)}'\n" for line in lines) + then + "\n"


def rate(bench, what, gb_per_s):
    return {"bench": bench, "what": what, "gb_per_s": gb_per_s, "median_us": 1.0}


class RunGpu(unittest.TestCase):
    def run_with(self, programs, *options, code=0):
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            for name, text in {"syncrun": SYNCRUN, "python": PYTHON, **programs}.items():
                (build / name).write_text(text)
                (build / name).chmod(0o755)
            command = [sys.executable, "-B", str(RUNNER), folder, "--python", str(build / "python"), "--devices", "2"]
            done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.output = done.stdout
            return json.loads((build / "bench_gpu.json").read_text()) if code == 0 else None

    def rows(self, programs, *options):
        report = self.run_with(programs, *options)
        return {(row["benchmark"], row["comparator"].split("(")[-1].split(":")[0].rstrip(")")): row
                for row in report["table"]}

    def test_rates_are_better_when_larger(self):
        what = "64 MiB per worker, contiguous"
        rows = self.rows({"bench_gpu_scatter": printing(rate("gpu_scatter", what, 90)),
                          "pinned_copy": printing(rate("gpu_scatter", what, 100))}, "--only", "scatter")
        row = rows[f"scatter {what}", "pinned_copy"]
        self.assertEqual((row["ratio"], row["target"], row["result"]), ("0.90", ">= 0.92x", "missed"))

    def test_the_median_over_repetitions_counts(self):
        counting = ('#!/bin/sh\ncount=$(cat "$0.count" 2>/dev/null || echo 0)\necho $((count + 1)) >"$0.count"\n'
                    "set -- 3 100 4\nshift $count\n"
                    'echo "{\\"bench\\": \\"gpu_call\\", \\"what\\": \\"empty call\\", \\"median_us\\": $1, \\"p90_us\\": 7}"\n')
        row = self.rows({"bench_gpu_call": counting}, "--only", "call")["empty call", ""]
        self.assertEqual((row["ours"], row["result"]), ("4.00 µs (p90 7.00 µs)", "met"))
        self.assertTrue(self.output.strip().endswith("| met |"))

    def test_what_fails_is_a_row_and_not_the_end(self):
        what = "1 KiB, eager"
        rows = self.rows({
            "bench_gpu_all_reduce": printing(then="echo 'error: NCCL is out of sorts' >&2; exit 3"),
            "nccl_all_reduce": printing({"bench": "gpu_all_reduce", "what": what, "median_us": 9}),
            "bench_gpu_call": printing(then="sleep 60")}, "--only", "call,all_reduce", "--timeout", "5", "--quick")
        row = rows[f"all_reduce {what}", "nccl"]
        self.assertEqual(row["ours"], "failed: exit status 3: error: NCCL is out of sorts")
        self.assertEqual(row["result"], "not judged")
        self.assertIn("still running after 5.0 s", rows["empty call", ""]["ours"])
        row = self.rows({}, "--only", "scatter")["scatter (scatter)", "pinned_copy"]
        self.assertIn("no bench_gpu_scatter in the build directory", row["ours"])
        self.assertIn("no pinned_copy in the build directory", row["comparator"])
        self.assertEqual(self.run_with({}, "--only", "mnist", "--quick")["table"], [])
        self.assertIn("no bench_mnist_step", self.output)

    def test_the_fastest_setting_of_pytorch_counts(self):
        ours = {"bench": "mnist_step", "devices": 2, "batch": 500, "dtype": "float32", "median_us": 80,
                "median_us_async": 50}
        rows = self.rows({"bench_mnist_step": printing(ours)}, "--only", "mnist", "--quick")
        row = rows["MNIST step batch 500, float32", "torch_ddp"]
        self.assertEqual((row["ratio"], row["result"]), ("10.00", "met"))
        self.assertIn("torch_ddp: compile", row["comparator"])
        failed = rows["MNIST step batch 500, float32", "torch_graph"]
        self.assertIn("[rank1]: RuntimeError: no graph today", failed["comparator"])
        self.assertEqual(rows["MNIST step batch 500, float32, not waited for", "torch_ddp"]["result"], "not judged")

    def test_launch_counts_from_the_start_to_the_result(self):
        now = '$(python3 -c "import time; print(time.monotonic_ns())")'
        result = ('#!/bin/sh\nsleep 0.1\necho "{\\"bench\\": \\"gpu_launch\\", \\"what\\": \\"first call\\", '
                  f'\\"result_at_ns\\": {now}}}"\n')
        torch = PYTHON.replace("'\"$NOW_PLUS_9_S\"'", f'\'"$(({now} + 900000000000))"\'')
        rows = self.rows({"bench_gpu_launch": result, "bench_gpu_launch_step": result, "python": torch},
                         "--only", "launch", "--quick")
        row = rows["launch to first call", "torchrun"]
        self.assertEqual(row["result"], "met")
        self.assertGreater(float(row["ratio"]), 5)

    def test_a_group_that_does_not_exist_is_refused(self):
        self.run_with({}, "--only", "speed", code=2)


if __name__ == "__main__":
    unittest.main()

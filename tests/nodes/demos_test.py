#!/usr/bin/env python3
"""The examples and the language model run on several hosts without a change, and give what one host gives."""

import subprocess
import tempfile
from pathlib import Path

import nodes_test
from engines import ENGINES
from jobs import RUN_LIMIT_S
from nodes_test import OnHosts

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "data/digits"
# Examples and their arguments. Each checks its own result. Those on named devices are in values_on_hosts.py.
EXAMPLES = {name: () for name in ("batch_and_minibatch", "batch_s", "data_handling", "monte_carlo", "pi",
                                  "reductions_and_slices", "shared_variables", "update")}  # fmt: skip
EXAMPLES["elastic_averaging"] = (DIGITS,)
SMALL_MODEL = ("--n-embd", 32, "--block-size", 32, "--batch-size", 12, "--max-iters", 10, "--warmup-iters", 2,
               "--eval-iters", 1, "--max-new-tokens", 0)  # fmt: skip


class Demos(OnHosts):
    """Two hosts of two workers, and one host of four."""

    count = 2

    def on_one_host(self, program, arguments):
        done = subprocess.run([nodes_test.options.syncrun, "-n", "4", program, *map(str, arguments)], text=True,
                              capture_output=True, timeout=RUN_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def on_two_hosts(self, program, arguments):
        job = self.job(ENGINES["openmpi"], arguments, nodes=2, workers=2, program=str(program))
        self.assertNotIn("\x1b", self.succeeds(job), "mpirun may write to a file")
        return job.text

    def test_each_example_gets_its_result(self):
        folder = Path(nodes_test.options.build, "demos/examples")
        for name, arguments in EXAMPLES.items():
            with self.subTest(example=name):
                self.on_two_hosts(folder / f"example_{name}", arguments)

    def test_the_language_model_has_the_losses_of_one_host(self):
        program = Path(nodes_test.options.build, "bin/syncrun-gpt")
        if not program.exists():
            self.skipTest("syncrun-gpt was not built")
        with tempfile.TemporaryDirectory(dir=self.hosts.folder) as folder:
            losses = []
            for name, run in (("one", self.on_one_host), ("two", self.on_two_hosts)):
                file = Path(folder, name)
                run(program, [*SMALL_MODEL, "--losses", file])
                losses.append([float(line.split()[1]) for line in file.read_text(encoding="utf-8").splitlines()])
            self.assertEqual(len(losses[0]), 10)
            for one, two in zip(*losses, strict=True):
                self.assertLess(abs(two / one - 1), 1e-5)


if __name__ == "__main__":
    nodes_test.main(["Demos"])

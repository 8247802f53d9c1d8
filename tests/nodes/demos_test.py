#!/usr/bin/env python3
"""The demos run on several hosts without a change, and give what one host with as many workers gives."""

import re
import subprocess
import sys
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
RELATIVE = {"float32": 2e-3, "float64": 1e-9}  # of losses, as on one node with other numbers of workers


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
        self.assertEqual(job.finish(), 0, job.text)
        self.assertNotIn("\x1b", job.text, "mpirun may write to a file")
        return job.text

    def check_losses(self, program, arguments, dtype):
        """The losses of the epochs are those of one host."""

        def losses(text):
            return [float(number) for number in re.findall(r"^epoch +\d+/\d+ +loss (\d+\.\d+)", text, re.MULTILINE)]

        one, two = losses(self.on_one_host(program, arguments)), losses(self.on_two_hosts(program, arguments))
        self.assertTrue(one)
        self.assertEqual(len(one), len(two))
        for at_one, at_two in zip(one, two, strict=True):
            self.assertLess(abs(at_two / at_one - 1), RELATIVE[dtype])

    def check_results(self, program, arguments):
        """Lines with the same words, and numbers with the same first digits."""

        def results(text):
            return [line.split() for line in text.splitlines() if re.match(r"epoch |class |\d+ (of|images)", line)]

        one, two = results(self.on_one_host(program, arguments)), results(self.on_two_hosts(program, arguments))
        self.assertTrue(one)
        self.assertEqual(len(one), len(two))
        for at_one, at_two in zip(one, two, strict=True):
            for word, other in zip(at_one, at_two, strict=True):
                if re.fullmatch(r"\d+\.\d+,?", word):
                    self.assertAlmostEqual(float(word.rstrip(",")), float(other.rstrip(",")), delta=2e-6)
                else:
                    self.assertEqual(word, other)

    def test_each_example_gets_its_result(self):
        folder = Path(nodes_test.options.build, "demos/examples")
        for name, arguments in EXAMPLES.items():
            with self.subTest(example=name):
                self.on_two_hosts(folder / f"example_{name}", arguments)

    def test_the_resnet_learns_from_files_that_each_host_maps(self):
        with tempfile.TemporaryDirectory(dir=self.hosts.folder) as folder:
            subprocess.run([sys.executable, ROOT / "demos/resnet/tools/pack_images.py", "--idx",
                            DIGITS / "digits-train-images-idx3-ubyte", DIGITS / "digits-train-labels-idx1-ubyte",
                            "--size", "32", folder], check=True, capture_output=True)  # fmt: skip
            # The hosts have equal files. Only the order of summation differs.
            self.check_losses(Path(nodes_test.options.build, "bin/syncrun-resnet"),
                              ["--data", folder, "--depth", 18, "--width", 8, "--epochs", 2, "--batch", 300,
                               "--evaluate-fraction", 0.2,
                               "--no-mirror", "--sync-norm", "--lr", 0.001], "float32")  # fmt: skip

    def test_images_are_the_same_on_several_hosts(self):
        for name in ("image_folder", "tar_shards"):
            program = Path(nodes_test.options.build, f"demos/examples/example_{name}")
            with self.subTest(example=name), tempfile.TemporaryDirectory(dir=self.hosts.folder) as folder:
                if not program.exists():
                    self.skipTest(f"{name} was not built")
                images = Path(folder, "images")
                self.on_one_host(program, ["--write", images])
                self.check_results(program, [images])

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

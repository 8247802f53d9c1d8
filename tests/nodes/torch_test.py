#!/usr/bin/env python3
"""Models of LibTorch train on several hosts with the losses of one host that has as many workers, and save what it saves."""

import array
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import nodes_test
from engines import ENGINES
from jobs import RUN_LIMIT_S
from nodes_test import OnHosts

RELATIVE = 1e-5
LAYOUTS = (("openmpi", 2, 2), ("openmpi", 3, 2), ("mpich", 2, 2))  # the engine, hosts, workers on each


def read_safetensors(path):
    """The tensors of a file, by their names. Floating-point tensors are lists of numbers, others are bytes."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = data[8 + length + begin : 8 + length + end]
            tensors[name] = array.array("f", values).tolist() if entry["dtype"] == "F32" else values
    return tensors


class Torch(OnHosts):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.hosts.folder))

    def on_one_host(self, ranks, *action):
        command = [nodes_test.options.syncrun, "-n", str(ranks), nodes_test.options.torch_program, *map(str, action)]
        done = subprocess.run(command, text=True, capture_output=True, timeout=RUN_LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def start(self, layout, *action, **kwargs):
        engine, nodes, workers = layout
        return self.job(ENGINES[engine], action, nodes=nodes, workers=workers, program=nodes_test.options.torch_program, **kwargs)

    def on_hosts(self, layout, *action):
        job = self.start(layout, *action)
        self.assertEqual(job.finish(), 0, job.text)
        self.assertIn("as expected", job.text)
        self.assertNotIn("differ between ranks", job.text)
        self.check_nothing_left()
        return job.text

    def for_each_layout(self):
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                # A layout whose engine is missing skips the test.
                next(self.for_each_engine((layout[0],)))
                yield layout

    def numbers_in(self, text, count):
        found = {name: float(number) for name, number in re.findall(r"^(loss \d+|evaluation) (\S+)$", text, re.MULTILINE)}
        self.assertEqual(len(found), count, text)
        return found

    def check_close(self, found, wanted, what):
        self.assertEqual(found.keys(), wanted.keys())
        furthest = max(abs(found[name] / wanted[name] - 1) for name in wanted)
        print(f"  {what}: losses differ from those of one host by at most {furthest:.1e}", flush=True)
        self.assertLess(furthest, RELATIVE)

    def check_files(self, found, wanted):
        one, other = read_safetensors(wanted), read_safetensors(found)
        self.assertEqual(list(one), list(other))
        self.assertIn("norm.running_mean", one)
        for name, values in one.items():
            if isinstance(values, bytes):
                self.assertEqual(values, other[name], name)
                continue
            largest = max(map(abs, values))
            distance = max(abs(a - b) for a, b in zip(values, other[name], strict=True))
            self.assertLessEqual(distance, RELATIVE * largest, name)

    def test_training_has_the_losses_and_the_files_of_one_host(self):
        for layout in self.for_each_layout():
            for form in ("replicated", "sharded"):
                one, several = self.folder / f"one-{form}", self.folder / f"several-{form}"
                for folder in (one, several):
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir()
                wanted = self.numbers_in(self.on_one_host(layout[1] * layout[2], "train", one, form), 11)
                self.assertLess(wanted["loss 9"], wanted["loss 0"])
                text = self.on_hosts(layout, "train", several, form)
                self.check_close(self.numbers_in(text, 11), wanted, f"{layout}, {form}")
                self.check_files(several / "model.safetensors", one / "model.safetensors")

                # A job continues from its checkpoint with the same bits, and from that of one host with the same losses.
                losses = re.findall(r"^loss \S+ \S+$", text, re.MULTILINE)
                again = self.on_hosts(layout, "resume", several, form)
                self.assertEqual(re.findall(r"^loss \S+ \S+$", again, re.MULTILINE), losses[5:])
                last = {name: wanted[name] for name in list(wanted)[5:10]}
                self.check_close(self.numbers_in(self.on_hosts(layout, "resume", one, form), 5), last, "from one host")

    def test_optimizers_of_libtorch_and_dropout_have_the_losses_of_one_host(self):
        for layout in self.for_each_layout():
            wanted = self.numbers_in(self.on_one_host(layout[1] * layout[2], "optimizer"), 20)
            self.check_close(self.numbers_in(self.on_hosts(layout, "optimizer"), 20), wanted, str(layout))

    def test_batch_norms_of_all_ranks_have_the_losses_of_one_host(self):
        for layout in self.for_each_layout():
            wanted = self.numbers_in(self.on_one_host(layout[1] * layout[2], "together"), 11)
            self.check_close(self.numbers_in(self.on_hosts(layout, "together"), 11), wanted, str(layout))

    def test_failures_in_the_backward_pass_are_named(self):
        for layout in self.for_each_layout():
            last = rf"rank {layout[1] * layout[2] - 1} \(n{layout[1]}:cpu1, pid \d+\)"
            for action, pattern in (("wrong", last + r" failed in call 'wrong_loss' .*self must be a matrix"),
                                    ("lost", last + r" was lost.*SIGKILL")):  # fmt: skip
                job = self.start(layout, action)
                self.assertNotEqual(job.finish(), 0, job.text)
                self.assertRegex(job.text, pattern)
                self.check_nothing_left()


if __name__ == "__main__":
    nodes_test.main(("Torch",))

#!/usr/bin/env python3
"""Models of LibTorch train on several hosts with the losses of one host that has as many workers, and save what it saves."""

import array
import json
import re
import subprocess
import tempfile
from pathlib import Path

import nodes_test
from engines import ENGINES
from jobs import RUN_LIMIT_S
from nodes_test import OnHosts

RELATIVE = 1e-5
FORMS = ("replicated", "sharded")
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


def joined(actions):
    """The arguments for a program that does these, one after the other."""
    words = [word for action in actions for word in ("+", *map(str, action))]
    return words[1:]


def of_forms(action, folders):
    return [(action, folders[form], form) for form in FORMS]


class Torch(OnHosts):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.hosts.folder))

    def on_one_host(self, ranks, *actions):
        """What each of the actions prints."""
        command = [nodes_test.options.syncrun, "-n", str(ranks), nodes_test.options.torch_program, *joined(actions)]
        done = subprocess.run(command, text=True, capture_output=True, timeout=RUN_LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.parts_of(done.stdout, actions)

    def start(self, layout, *actions, **kwargs):
        engine, nodes, workers = layout
        return self.job(ENGINES[engine], joined(actions), nodes=nodes, workers=workers, program=nodes_test.options.torch_program,
                        **kwargs)  # fmt: skip

    def on_hosts(self, layout, *actions):
        text = self.succeeds(self.start(layout, *actions))
        self.assertNotIn("differ between ranks", text)
        return self.parts_of(text, actions)

    def parts_of(self, text, actions):
        parts = re.split(r"^as expected: (\w+)$", text, flags=re.MULTILINE)
        self.assertEqual(parts[1::2], [action[0] for action in actions], text)
        return parts[0:-1:2]

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

    def check_losses(self, found, wanted, count, what):
        self.check_close(self.numbers_in(found, count), self.numbers_in(wanted, count), what)

    def test_trainings_have_the_losses_and_the_files_of_one_host(self):
        for layout in self.for_each_layout():
            one, several = ({form: Path(tempfile.mkdtemp(dir=self.folder)) for form in FORMS} for _ in range(2))
            wanted = self.on_one_host(layout[1] * layout[2], *of_forms("train", one), ("together",))
            found = self.on_hosts(layout, *of_forms("train", several), ("together",))
            self.check_losses(found[2], wanted[2], 11, f"{layout}, batch norms of all ranks")
            # A job continues from its checkpoint with the same bits, and from that of one host with the same losses.
            again = self.on_hosts(layout, *of_forms("resume", several), *of_forms("resume", one))
            for i, form in enumerate(FORMS):
                numbers = self.numbers_in(wanted[i], 11)
                self.assertLess(numbers["loss 9"], numbers["loss 0"])
                self.check_losses(found[i], wanted[i], 11, f"{layout}, {form}")
                self.check_files(several[form] / "model.safetensors", one[form] / "model.safetensors")
                self.assertEqual(self.losses_in(again[i]), self.losses_in(found[i])[5:])
                last = {name: numbers[name] for name in list(numbers)[5:10]}
                self.check_close(self.numbers_in(again[i + 2], 5), last, "from one host")

    @staticmethod
    def losses_in(text):
        return re.findall(r"^loss \S+ \S+$", text, re.MULTILINE)

    def test_failures_in_the_backward_pass_are_named(self):
        for layout in self.for_each_layout():
            last = rf"rank {layout[1] * layout[2] - 1} \(n{layout[1]}:cpu1, pid \d+\)"
            for action, pattern in (("wrong", last + r" failed in call 'wrong_loss' .*self must be a matrix"),
                                    ("lost", last + r" was lost.*SIGKILL")):  # fmt: skip
                self.fails(self.start(layout, (action,)), pattern)


if __name__ == "__main__":
    nodes_test.main(("Torch",))

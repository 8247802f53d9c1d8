#!/usr/bin/env python3
"""Tests of profiles, traces and metrics of sessions on several hosts."""

import json
import re
import tempfile
from pathlib import Path

import nodes_test
from nodes_test import OnHosts

LINE = re.compile(r"(\S+) on rank (-?\d+): (\d+) calls, whole (\S+), function (\S+), collective (\S+)")


def read_trace(path):
    """A trace whose end may be missing, as {name of the row: [(name, begin, end) in ms]}."""
    text = path.read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = {name: [] for name in rows.values()}
    for event in events:
        if event["ph"] == "X":
            spans[rows[event["tid"]]].append((event["name"], event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3))
    return spans


class Profiles(OnHosts):
    with_slurm = True

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.hosts.folder))
        self.trace = self.folder / "trace.json"

    def profile(self, job):
        return {(name, int(rank)): (int(calls), *map(float, times)) for name, rank, calls, *times in LINE.findall(job.text)}

    def test_a_profile_has_the_durations_of_every_rank(self):
        for engine in self.for_each_engine():
            table, metrics = self.folder / "table.txt", self.folder / "metrics.prom"
            job = self.job(engine, ["profile"], more=["--profile", table, "--trace", self.trace, "--metrics", metrics])
            self.succeeds(job)
            lines = self.profile(job)
            for rank in range(6):
                calls, whole, function, _ = lines["sleep_by_rank", rank]
                self.assertEqual(calls, 15 if rank == 5 else 5)
                self.assertGreaterEqual(function, 10 * rank * 0.97)
                self.assertLess(function, 10 * rank + 300)
                self.assertLessEqual(function, whole * 1.03)
                calls, whole, _, collective = lines["meet", rank]
                self.assertEqual(calls, 50)
                self.assertGreater(collective, 0)
                self.assertLessEqual(collective, whole * 1.03)
            calls, whole, _, _ = lines["sleep_by_rank", -1]
            self.assertEqual(calls, 15)
            self.assertGreaterEqual(whole, 50 * 0.97)
            for rank in range(6):
                self.assertRegex(table.read_text(), rf"  rank {rank} +50 ")
                for name, total in ("calls", 65 if rank == 5 else 55), ("collectives", 50), ("collective_bytes", 50 * 8):
                    self.assertRegex(metrics.read_text(), rf'syncrun_{name}_total{{rank="{rank}",.*}} {total}\n')
            self.check_trace()

    def check_trace(self):
        rows = read_trace(self.trace)
        self.assertLessEqual({f"rank {rank} (n{1 + rank // 2}:cpu{rank % 2})" for rank in range(6)}, set(rows))
        master = [span for name, spans in rows.items() if name.startswith("master") for span in spans]
        sent = {name: sorted((begin, end) for called, begin, end in master if called == name)
                for name in ("sleep_by_rank", "meet")}  # fmt: skip
        for row, spans in rows.items():
            if row.startswith("master"):
                continue
            calls = sorted((begin, end, name) for name, begin, end in spans if name in sent)
            self.assertEqual([name for _, _, name in calls], 5 * ["sleep_by_rank"] + 50 * ["meet"] +
                             (10 * ["sleep_by_rank"] if "rank 5" in row else []))  # fmt: skip
            for (_, end, _), (begin, _, _) in zip(calls, calls[1:]):
                self.assertGreaterEqual(begin, end - 0.01, row)
            for index, (begin, end, name) in enumerate(calls[:55]):  # these calls were made one after another
                of_master = sent[name][index if name == "sleep_by_rank" else index - 5]
                self.assertGreaterEqual(begin, of_master[0] - 0.01, (row, index))
                self.assertLessEqual(end, of_master[1] + 0.01, (row, index))

    def test_a_trace_shows_where_the_ranks_of_other_nodes_were_at_a_loss(self):
        for engine in self.for_each_engine(("openmpi",)):
            job = self.job(engine, ["abort", 3], more=["--trace", self.trace])
            self.fails(job, r"rank 3 \(n2:cpu1, pid \d+\) was lost in call 'abort_on'")
            self.assertRegex(job.text, r"\n    (#\d+ abort_on \(|no stack: )", "the agent of its node sends the stack")
            names = [name for name, _, _ in read_trace(self.trace)["rank 3 (n2:cpu1)"]]
            self.assertEqual(names[-2:], ["function", "abort_on"])

    def test_one_node_keeps_its_profile(self):
        command = [nodes_test.options.syncrun, "-n", "2", "--trace", self.trace, nodes_test.options.program, "profile"]
        done = self.hosts.run("n1", command, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(read_trace(self.trace)), {"master", "rank 0 (cpu0)", "rank 1 (cpu1)"})


if __name__ == "__main__":
    nodes_test.main(["Profiles"])

#!/usr/bin/env python3
"""Tests of jobs whose nodes pass messages on along a tree. It has five hosts: n2 and n4 are relays, n3 is below n2, and n5
below n4."""

import os
import re
import signal
import time

import hosts
import nodes_test
from nodes_test import VERDICT_LIMIT_S, BreakingHosts

NODES = 5
TREE = ("--tree-from", "2")
STAR = ("--tree-from", "1000")
# A neighbour in the tree waits a second longer than the master does.
LINK_LIMIT_S = VERDICT_LIMIT_S + 1


class Trees(BreakingHosts):
    count = NODES

    def job(self, engine, action, more=(), **kwargs):
        shape = () if "--tree-from" in more else TREE
        return super().job(engine, action, more=[*more, *shape], **{"nodes": NODES, **kwargs})

    def output_of(self, engine, action, shape, **kwargs):
        job = self.job(engine, action, more=shape, **kwargs)
        self.succeeds(job, limit=120)
        # On a busy machine, Open MPI sometimes warns of a process that it has started: "[n1:00035] plm:rsh: ...".
        return [line for line in job.text.splitlines() if not re.match(r"syncrun: |\[n\d+:\d+\] plm:", line)]

    def test_calls_give_the_results_of_a_star(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            lines = self.output_of(engine, ["calls"], TREE)
            self.assertIn("0 101 210 311 420 521 630 731 840 941 ", lines)
            self.assertEqual(lines, self.output_of(engine, ["calls"], STAR))

    def test_collectives_give_the_results_of_a_star(self):
        for engine in self.for_each_engine(("openmpi",)):
            lines = self.output_of(engine, ["collectives"], TREE)
            self.assertGreater(len(lines), 3)
            self.assertEqual(lines, self.output_of(engine, ["collectives"], STAR))

    def test_variables_and_values_are_as_expected(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            for action in ("variables", "values"):
                self.assertIn("as expected", self.output_of(engine, [action], TREE, nodes=3))

    def test_a_failure_below_a_relay_is_named(self):
        for engine in self.for_each_engine(("openmpi",)):
            self.fails(self.job(engine, ["fail", 5]), r"rank 5 \(n3:cpu1, pid \d+\) failed in call 'fail_on' \(phase function\): it broke")

    def test_relay_killed(self):
        for phase in ("body", "stream", "reduce"):
            with self.subTest(phase=phase):
                # Open MPI itself ends a process that sends something large to one that has died. MPICH reports it.
                engine = "mpich" if phase == "reduce" else "openmpi"
                job, began = self.after(engine, phase, lambda: os.kill(self.agent_of("n4"), signal.SIGKILL))
                self.check_verdict(job, began, r"node 3 \(n4\) (is silent for 3\.0 s|cannot be reached)", VERDICT_LIMIT_S)

    def test_relay_stopped(self):
        for phase in ("body", "stream"):
            with self.subTest(phase=phase):
                job, began = self.after("openmpi", phase, lambda: os.kill(self.agent_of("n2"), signal.SIGSTOP))
                self.check_verdict(job, began, r"node 1 \(n2\) is silent for 3\.0 s", VERDICT_LIMIT_S)

    def test_link_of_a_relay_down(self):
        job, began = self.after("openmpi", "stream", lambda: self.hosts.set_link("n2", "down"))
        self.check_verdict(job, began, r"node 1 \(n2\) is silent for 3\.0 s", VERDICT_LIMIT_S, ends=False)

    def test_link_within_the_tree_down(self):
        def part():
            self.hosts.run("n2", ["ip", "route", "add", "blackhole", f"{hosts.NETWORK}.3/32"], check=True)

        job, began = self.after("openmpi", "stream", part)
        self.check_verdict(job, began, r"nothing is heard from node [12] \(n[23]\) for 3\.7 s, "
                           r"but the master hears from both", LINK_LIMIT_S + 0.5)  # fmt: skip

    def test_worker_killed_below_a_relay(self):
        for phase in ("body", "stream", "reduce"):
            with self.subTest(phase=phase):
                job, began = self.after("openmpi", phase, lambda: os.kill(self.worker_of("n5"), signal.SIGKILL))
                self.check_verdict(job, began, r"rank [89] \(n5:cpu.*was lost.*SIGKILL", 1)

    def test_relay_stopped_for_less_than_the_limit(self):
        def pause():
            agent = self.agent_of("n2")
            os.kill(agent, signal.SIGSTOP)
            time.sleep(4)
            os.kill(agent, signal.SIGCONT)

        job, _ = self.after("openmpi", "idle", pause, more=["--node-timeout", "12"])
        self.succeeds(job)


if __name__ == "__main__":
    nodes_test.main(["Trees"])

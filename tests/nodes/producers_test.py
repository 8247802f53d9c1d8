#!/usr/bin/env python3
"""Tests of queues whose producers run on every host."""

import os
import re
import signal
import time
from pathlib import Path

import nodes_test
from nodes_test import VERDICT_LIMIT_S, BreakingHosts

MIB = 1 << 20
BATCHES_MIB = 14 * 2000 * 65 * 8 / MIB  # all batches of the action "produce", without the last one
# Commands and their reports, what producers have pushed, and a beat four times a second. Packets have headers.
MOST_BYTES = MIB // 2


class Producers(BreakingHosts):
    def finish(self, job):
        self.succeeds(job, "as expected")

    def take_batches(self, places, nodes, engine, more=()):
        """Returns the results, and the most bytes that a host has received."""
        job = self.start("produce", places, engine=engine, nodes=nodes, more=more)
        job.await_line("ready to take")
        before = self.network_bytes()
        began = time.monotonic()
        self.go_on(job)
        took = job.await_line("^taken") - began
        after = self.network_bytes()
        self.go_on(job)
        self.finish(job)
        received = max(after[name][0] - before[name][0] for name in self.hosts.names)
        print(f"  {engine}, {nodes} hosts, producers on the {places} host: a host has received at most {received} bytes, "
              f"{took:.2f} s", flush=True)  # fmt: skip
        return self.results_of(job.text), received

    @staticmethod
    def results_of(text):
        return re.findall(r"batch \d+ has \d+ rows, sum \S+", text)

    def producers_of(self, host):
        """The process numbers of the producers of a queue with the name 'reader'."""
        return [pid for pid in self.hosts.pids(host, nodes_test.options.program)
                if Path(f"/proc/{pid}/comm").read_text().strip() == "reader"]  # fmt: skip

    def test_batches_are_those_of_one_node_and_do_not_travel(self):
        expected = self.results_of(self.on_one_node(4, "produce", "every", lines="\n\n"))
        self.assertEqual(len(expected), 15)
        for nodes, engine in ((2, "openmpi"), (3, "openmpi"), (2, "mpich")):
            first, sent = self.take_batches("first", nodes, engine)
            every, kept = self.take_batches("every", nodes, engine)
            self.assertEqual(first, expected)
            self.assertEqual(every, expected)
            # Of the first node's batches, each other node reads the rows of its own ranks.
            self.assertGreater(sent, 0.9 * BATCHES_MIB * MIB / nodes)
            self.assertLess(kept, MOST_BYTES)

    def test_programs_use_batches_as_on_one_node(self):
        self.assertIn("as expected", self.on_one_node(4, "produce-freely", "x", lines="\n\n"))
        for nodes, engine in ((2, "openmpi"), (3, "openmpi"), (2, "mpich")):
            self.finish(self.start("produce-freely", "x", engine=engine, nodes=nodes))

    def test_each_node_fills_the_rows_of_its_own_ranks(self):
        self.assertIn("as expected", self.on_one_node(4, "produce-shares", "x", lines="\n\n"))
        for nodes, engine in ((2, "openmpi"), (3, "openmpi"), (2, "mpich")):
            job = self.start("produce-shares", "x", engine=engine, nodes=nodes)
            self.finish(job)
            self.assertRegex(job.text, r"rank \d+ reads rows \[0, 2000\), and node \d has rows \[\d+, 2000\): let the producers fill "
                             r"all rows and call push\(\), or")  # fmt: skip
            self.assertIn("the program requires all 2000 rows, and its node has rows [0, ", job.text)

    def test_along_a_tree(self):
        expected = self.results_of(self.on_one_node(4, "produce", "every", lines="\n\n"))
        every, kept = self.take_batches("every", 3, "openmpi", more=["--tree-from", "2"])
        self.assertEqual(every, expected)
        self.assertLess(kept, MOST_BYTES)
        self.finish(self.start("produce-freely", "x", more=["--tree-from", "2"]))

    def check_unlike(self, how, pattern, engine="openmpi", host="n2"):
        job = self.start("produce-unlike", host, how, engine=engine)
        job.await_line("the session goes on")
        for name in self.hosts.names:
            self.assertEqual(self.producers_of(name), [], f"left on {name}")
        self.go_on(job)
        self.finish(job)
        self.assertRegex(job.text, pattern)
        return job.text

    def test_a_function_throws_on_one_node(self):
        for engine in ("openmpi", "mpich"):
            self.check_unlike("throws", r"after [45] batches, function, producer 1 on 'n2': producer 1 \(n2, pid \d+\) of 'reader' "
                              r"failed: numbers-0002.bin: no such file", engine)  # fmt: skip

    def test_a_producer_dies_on_one_node(self):
        text = self.check_unlike("dies", r"worker lost, producer 1 on 'n3': producer 1 \(n3, pid \d+\) of 'reader' was lost while "
                                 r"the program waited for a batch: .*SIGABRT", host="n3")  # fmt: skip
        self.assertIn("\n  [producer 1] last words of a producer", text)
        self.assertIn("[n3, producer 1] last words of a producer", text)

    def test_nodes_that_make_different_batches(self):
        # Node n1 may be late. Then the error compares with n3.
        unlike = r"function, producer 1 on 'n2': producer 1 \(n2, pid \d+\) of 'reader' does not do the same as on n[13]: n[13] "
        self.check_unlike("fewer", unlike + r"pushed 8, 8 rows as its batch 1 in place \d+, n2 pushed 7, 7 rows as its batch 1")
        self.check_unlike("ends", unlike + r"pushed 8, 8 rows as its batch 2 in place \d+, n2 returned after 2 batches")
        self.check_unlike("drops", unlike + r"pushed 8, 8 rows as its batch 1 in place (\d+), n2 pushed 8, 8 rows as its batch 1 "
                          r"in place (?!\1)")  # fmt: skip

    def test_a_producer_is_killed_while_the_program_waits(self):
        for host in ("n1", "n2"):
            job = self.start("produce-nothing", "x")
            job.await_line("the queue is empty")
            time.sleep(0.3)
            os.kill(self.producers_of(host)[0], signal.SIGKILL)
            when = job.await_line(rf"worker lost on '{host}': producer \d \({host}, pid \d+\) of 'reader' was lost .*SIGKILL")
            self.finish(job)
            self.assertIn(f"[{host}, producer 0] a line of a producer", job.text)
            self.assertIsNotNone(when)

    def test_a_lost_worker_is_replaced_while_producers_run(self):
        self.finish(self.start("respawn-produce", "x"))

    def test_a_producer_does_not_end_when_its_queue_is_closed(self):
        job = self.start("produce-hang", "n2")
        self.finish(job)
        self.assertRegex(job.text, r"worker lost on 'n2': producer 1 \(n2, pid \d+\) of 'reader' was lost while closing: did not "
                         r"end within 5000 ms and was killed")  # fmt: skip

    def test_a_late_batch_names_its_node(self):
        job = self.start("produce-nothing", "x", more=["--timeout", "8"])
        job.await_line(r"timeout on 'n1': no batch of 'reader' came within 8000 ms: producer 0 \(n1, pid \d+\) of 'reader' has "
                       r"pushed 1 and is in its function")  # fmt: skip
        self.finish(job)

    def test_a_node_is_lost_while_the_program_waits(self):
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            job = self.start("produce-nothing", "x")
            job.await_line("the queue is empty")
            time.sleep(0.3)
            os.kill(self.agent_of("n2"), fault)
            self.check_verdict(job, time.monotonic(), r"node 1 \(n2\) is silent for 3\.0 s", VERDICT_LIMIT_S)

    def test_the_master_is_killed(self):
        job = self.start("produce-nothing", "x")
        job.await_line("the queue is empty")
        os.kill(self.agent_of("n1"), signal.SIGKILL)
        self.check_verdict(job, time.monotonic(), r"the master \(pid \d+\) was killed by SIGKILL", VERDICT_LIMIT_S)

    def test_a_worker_is_killed_while_the_program_waits(self):
        job = self.start("produce-nothing", "x", more=["--timeout", "10"])
        job.await_line("the queue is empty")
        workers = [pid for pid in self.hosts.pids("n2", nodes_test.options.program)[1:] if pid not in self.producers_of("n2")]
        os.kill(workers[0], signal.SIGKILL)
        job.await_line(r"timeout on 'n1': no batch of 'reader' came", 40)
        self.fails(job, r"rank [23] \(n2:cpu.*was lost.*SIGKILL")  # the session is over


if __name__ == "__main__":
    nodes_test.main(("Producers",))

"""Tests of sessions on several hosts that replace lost workers (a part of the group Faults of nodes_test.py)."""

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from engines import ENGINES

LIMIT_S = 240
LOST = r"node 1 \(n2\) (is silent for 3\.0 s|cannot be reached)"


class RespawnsOnHosts:
    def test_a_lost_worker_of_any_node_is_replaced(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            for nodes in (2, 3):
                with self.subTest(engine=engine.name, nodes=nodes):
                    self.succeeds(self.job(engine, ["respawn"], nodes=nodes), "as expected", limit=LIMIT_S)

    def test_a_worker_killed_between_calls_is_replaced(self):
        for name, rank in (("n1", 1), ("n2", 3)):
            with self.subTest(host=name):
                job = self.job(ENGINES["openmpi"], ["respawn-between"], stdin=subprocess.PIPE)
                job.await_line("between calls")
                os.kill(self.worker_of(name), signal.SIGKILL)
                time.sleep(0.2)
                job.process.stdin.write("\n")
                job.process.stdin.close()
                self.succeeds(job)
                self.assertRegex(job.text, rf"rank {rank} \({name}:cpu1, pid \d+\) was lost \(idle\): killed by SIGKILL")
                self.assertRegex(job.text, rf"rank {rank} \({name}:cpu1, pid \d+\) is new")

    def test_the_session_goes_on_whenever_workers_are_killed(self):
        """At any time of calls, on each host in turn. A worker that dies while another one is replaced ends the session, so
        the next one is killed when the program goes on."""
        seconds = 15
        for engine in self.for_each_engine(("openmpi", "mpich")):
            with self.subTest(engine=engine.name):
                job = self.job(engine, ["respawn-go-on", seconds])
                job.await_line("going on")
                end = time.monotonic() + seconds - 5
                kills = 0
                while time.monotonic() < end:
                    time.sleep(0.3 + 0.037 * (kills % 9))
                    os.kill(self.worker_of(self.hosts.names[kills % 3], kills // 3 % 2), signal.SIGKILL)
                    kills += 1
                    self.await_count(job, r"is new$", kills)
                self.succeeds(job, "as expected")
                self.assertEqual(len(re.findall(r"is new$", job.text, re.MULTILINE)), kills)
                print(f"  {engine.name}: {kills} workers were replaced, {re.search(r'[0-9]+ rounds', job.text)[0]}", flush=True)

    def await_count(self, job, pattern, count, limit=20):
        end = time.monotonic() + limit
        while len(re.findall(pattern, job.text, re.MULTILINE)) < count:
            if time.monotonic() > end or job.process.poll() is not None:
                self.fail(f"not {count} times {pattern!r}:\n{job.text}")
            time.sleep(0.01)

    def test_a_new_worker_that_cannot_start_ends_the_session(self):
        for rank, name in ((1, "n1"), (2, "n2")):
            with self.subTest(host=name):
                bad_start = Path(tempfile.mkdtemp(dir=self.hosts.folder)) / "bad"
                self.fails(self.job(ENGINES["openmpi"], ["respawn-in-vain", rank, bad_start]),
                           rf"rank {rank} \({name}:cpu\d, pid \d+\) was lost in call 'lose' \(phase function\), and could not be "
                           rf"replaced: rank {rank} .* was lost while starting .*: exited with code 7: killed by SIGKILL")  # fmt: skip

    # Open MPI itself ends a process that sends something large to one that has died. MPICH reports it.

    def test_a_lost_agent_still_ends_the_session(self):
        job = self.job(ENGINES["mpich"], ["respawn-go-on", 600])
        job.await_line("going on")
        time.sleep(0.3)
        os.kill(self.agent_of("n2"), signal.SIGKILL)
        self.check_verdict(job, time.monotonic(), LOST, 3.5)

    def test_an_agent_that_stops_while_its_worker_is_replaced_ends_the_session(self):
        job = self.job(ENGINES["mpich"], ["respawn-go-on", 600])
        job.await_line("going on")
        time.sleep(0.3)
        agent, worker = self.agent_of("n2"), self.worker_of("n2")
        os.kill(worker, signal.SIGKILL)
        os.kill(agent, signal.SIGSTOP)
        self.check_verdict(job, time.monotonic(), r"node 1 \(n2\) is silent for 3\.0 s", 3.5)

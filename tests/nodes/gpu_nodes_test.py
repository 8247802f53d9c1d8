#!/usr/bin/env python3
"""Tests of collectives on the GPUs of several nodes.

FakeGpus runs on several hosts (hosts.py), with fake GPUs, and tests everything but NCCL. TwoGpus and FourGpus require as
many GPUs. There are two nodes, each with a host name and with one or two GPUs of its own. NCCL connects them by sockets, as
it connects machines.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import engines
import hosts
from engines import ENGINES
from jobs import Job

SKIP_CODE = 77
RUN_LIMIT_S = 120
PARTS = ("collectives of bodies", "collectives of the master", "train steps", "failures")
PARTS_OF_REAL_GPUS = ("each collective", "replays")
AGENT_OF_NODE_1 = r"the agent of node 1 \(\w+\) \(pid \d+\) was killed by SIGKILL"
SILENT_NODE_1 = r"node 1 \(\S+\) is silent for 3\.0 s"
VERDICT_LIMIT_S = 3.5
BUSY_S = 15  # what limits get in addition, because other programs may use this machine
options = None


class GpuNodes(unittest.TestCase):
    def works(self, done, *texts):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for text in texts:
            self.assertIn(text, done.stdout)

    def fails(self, done, pattern):
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout + done.stderr, pattern)


class FakeGpus(GpuNodes):
    @classmethod
    def setUpClass(cls):
        cls.hosts = hosts.Hosts(3, keep=[options.build, Path(options.program).parent])
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.down)

    def run_on(self, nodes, devices, *action, engine="openmpi"):
        command = ENGINES[engine].command(self.hosts, nodes, [options.syncrun, options.program, devices, *action])
        return self.hosts.run("n1", command, timeout=RUN_LIMIT_S)

    def test_collectives_work_on_two_and_three_nodes(self):
        for nodes, devices in ((2, "cuda0,cuda1"), (3, "cuda0")):
            for engine in ("openmpi", "mpich"):
                self.works(self.run_on(nodes, devices, engine=engine), *PARTS, "as expected")

    def test_ranks_of_both_kinds_meet_in_host_memory(self):
        for devices in ("cuda0,cpu0", "cpu0,cuda0,cpu1"):
            self.works(self.run_on(2, devices, "mixed"), "both kinds")

    def test_checkpoints_have_the_rows_of_the_gpus_of_each_node(self):
        folder = Path(tempfile.mkdtemp(dir=self.hosts.folder)) / "run"
        for devices in ("cuda0,cuda1", "cuda0,cpu0"):
            self.works(self.run_on(2, devices, "checkpoint", folder), "checkpoint\nas expected")
            for part in range(2):
                self.assertGreater((folder / "latest" / f"v@{part}.npy").stat().st_size, 24_000_000)

    def test_a_rank_that_dies_is_named(self):
        for rank in (0, 1, 3):
            self.fails(self.run_on(2, "cuda0,cuda1", "die", str(rank)), rf"rank {rank} \(.*\) was lost in call 'die_on'.*killed by SIGKILL")

    def test_an_agent_that_dies_while_gpus_compute_is_named(self):
        for engine in ("openmpi", "mpich"):
            self.fails(self.run_on(2, "cuda0,cuda1", "lose-agent", engine=engine), AGENT_OF_NODE_1)

    def test_a_node_that_falls_silent_while_gpus_compute_is_named(self):
        self.fails(self.run_on(2, "cuda0,cuda1", "freeze-node"), SILENT_NODE_1)

    def strike(self, action, line, blow, pattern, limit):
        """Lets `blow` happen to two hosts of their own after the program has printed a line, and expects a verdict."""
        all_hosts = self.hosts
        try:
            with hosts.Hosts(2, keep=[options.build, Path(options.program).parent]) as self.hosts:
                job = Job(self, ENGINES["openmpi"], ["cuda0,cuda1", action], nodes=2, syncrun=options.syncrun, program=options.program)
                self.addCleanup(job.kill)
                job.await_line(line)
                blow()
                began = time.monotonic()
                self.assertLess(job.await_line(pattern, limit + BUSY_S) - began, limit + BUSY_S, job.text)
        finally:
            self.hosts = all_hosts

    def kill(self, name, which):
        """Kills the master or the agent of a host (0), or one of its workers (from 1)."""
        os.kill(self.hosts.pids(name, options.program)[which], signal.SIGKILL)

    def cut_link(self):
        self.hosts.set_link("n2", "down")

    def test_losses_are_named_while_ranks_wait_for_a_late_one(self):
        lost = r"rank 1 \(.*\) was lost in call 'reduce_gpu'.*killed by SIGKILL"
        for blow, pattern, limit in ((lambda: self.kill("n1", 2), lost, 1), (lambda: self.kill("n2", 0), AGENT_OF_NODE_1, VERDICT_LIMIT_S),
                                     (self.cut_link, SILENT_NODE_1, VERDICT_LIMIT_S)):  # fmt: skip
            with self.subTest(pattern=pattern):
                self.strike("late", "the others wait for it", blow, pattern, limit)

    def test_a_rank_that_dies_is_replaced(self):
        for rank in (0, 1, 3):
            self.works(self.run_on(2, "cuda0,cuda1", "replace", str(rank)), "replaced")
        self.works(self.run_on(3, "cuda0", "replace", "2"))

    def test_values_cross_between_gpus_of_different_nodes(self):
        # One GPU on each node, because fake GPUs cannot read each other's memory.
        for nodes, devices, engine in ((2, "cuda0", "mpich"), (3, "cuda0", "openmpi"), (2, "cuda0,cpu0", "openmpi"),
                                       (2, "cpu0,cuda0,cpu1", "openmpi")):  # fmt: skip
            self.works(self.run_on(nodes, devices, "values", engine=engine), "values")

    def test_values_of_a_lost_gpu_are_lost_and_others_stay(self):
        for rank in (0, 3):
            self.works(self.run_on(2, "cuda0,cuda1", "replace-with-values", str(rank)), "replaced with values")

    def test_ranks_of_different_nodes_that_disagree_are_named(self):
        for nodes, devices, engine in ((2, "cuda0", "mpich"), (2, "cuda0,cuda1", "openmpi"), (3, "cuda0", "openmpi")):
            done = self.run_on(nodes, devices, "disagree", engine=engine)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            named = re.findall(r"rank (\d) .*failed in call 'multiply'.*: ranks disagree in a collective: rank (\d) and rank (\d) have "
                               r"called different ones.*rank \d has called 1 so far, and rank \d has called 1\)", done.stdout)  # fmt: skip
            self.assertEqual(len(named), 3, done.stdout)
            self.assertIn("disagreements", done.stdout)

    def test_ranks_that_agree_wait_until_the_deadline(self):
        done = self.run_on(2, "cuda0,cuda1", "wait")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"call 'multiply' did not finish within 3000 ms")
        self.assertNotIn("disagree", done.stdout + done.stderr)


class TwoGpus(GpuNodes):
    devices = "cuda0"
    ranks = 2

    def run_on_two_nodes(self, *action, **variables):
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", str(hosts.HERE / "as_node.sh"),
                   options.syncrun, options.program, self.devices, *action]  # fmt: skip
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "GPUS_PER_NODE": str(self.ranks // 2), **variables}  # fmt: skip
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)

    def test_collectives_work_between_two_nodes(self):
        self.works(self.run_on_two_nodes(), *PARTS, *PARTS_OF_REAL_GPUS, "as expected")

    def test_a_rank_that_dies_in_a_collective_is_named(self):
        for rank in (0, self.ranks - 1):
            self.fails(self.run_on_two_nodes("die", str(rank)), rf"rank {rank} \(.*\) was lost in call 'die_on'.*killed by SIGKILL")

    def test_an_agent_that_dies_while_gpus_compute_is_named(self):
        self.fails(self.run_on_two_nodes("lose-agent"), AGENT_OF_NODE_1)

    def test_a_node_that_falls_silent_while_gpus_compute_is_named(self):
        for action in ("freeze-node", "late-and-freeze"):  # in collectives, and while a communicator is made
            self.fails(self.run_on_two_nodes(action), SILENT_NODE_1)

    def test_an_interface_that_does_not_exist_is_named(self):
        self.fails(self.run_on_two_nodes(NCCL_SOCKET_IFNAME="=nowhere7"),
                   r"node 0 has the interfaces .*; node 1 has the interfaces .*NCCL_SOCKET_IFNAME is =nowhere7 here")  # fmt: skip


class FourGpus(TwoGpus):
    devices = "cuda0,cuda1"
    ranks = 4


def why_gpus_are_impossible(count):
    present = [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if min(len(present), len(visible.split(",")) if visible is not None else count) < count:
        return f"{count} GPUs are required"
    missing = [tool for tool in ("mpirun", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return "not installed: " + ", ".join(missing)
    probe = subprocess.run(["unshare", "--uts", "true"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else "no namespaces here: " + probe.stderr.strip()


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=["FakeGpus", "TwoGpus", "FourGpus"])
    parser.add_argument("--syncrun", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--build", required=True, help="the build folder, which all hosts share")
    options, rest = parser.parse_known_args()
    gpus = {"TwoGpus": 2, "FourGpus": 4}
    reason = why_gpus_are_impossible(gpus[options.group]) if options.group in gpus else (
        hosts.why_impossible() or engines.why_impossible("mpirun.openmpi", "mpirun.mpich"))  # fmt: skip
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIP_CODE)
    unittest.main(argv=[sys.argv[0], options.group, *rest], verbosity=2)


if __name__ == "__main__":
    main()

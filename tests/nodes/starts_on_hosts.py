"""Tests of how engines start sessions on several hosts, and of what syncrun says about it (a part of the group Starts of
nodes_test.py)."""

import os
import re
from pathlib import Path

import engines
import hosts
from engines import ENGINES
from jobs import RUN_LIMIT_S


class StartsOnHosts:
    def test_mpirun_works_in_an_allocation_of_slurm(self):
        engine = engines.OTHERS["openmpi in slurm"]
        if reason := engines.why_impossible(*engine.tools, *engines.Srun.tools):
            self.skipTest(reason)
        self.succeeds(self.job(engine, ["calls"]), "as expected on n1 n2 n3")

    def test_copies_that_run_alone_are_named(self):
        warning = r"has started 3 copies of this program, and each of them runs alone\. To run .* put syncrun before it"
        for engine in self.for_each_engine(("openmpi", "pmi2")):
            done = self.hosts.run("n1", engine.command(self.hosts, 3, [self.options.program, "exit", "0"]), timeout=RUN_LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(re.findall(warning, done.stdout + done.stderr)), 3, done.stdout + done.stderr)

    def test_an_engine_that_gives_too_few_cores_is_named(self):
        if os.cpu_count() < 2:
            self.skipTest("one core")
        warning = rf"2 workers share 1 of the {os.cpu_count()} cores of the machine, and 2 more nodes have too few"
        for before, check in ((["taskset", "-c", "0"], self.assertRegex), ([], self.assertNotRegex)):
            job = self.job(ENGINES["openmpi"], ["calls"], before=before)
            self.succeeds(job)
            check(job.text, warning)

    def test_dry_run_shows_the_nodes_also_if_a_shell_has_found_syncrun(self):
        path = f"PATH={Path(self.options.syncrun).parent}:{os.environ['PATH']}"
        for engine in self.for_each_engine(("openmpi", "mpich")):
            for how in ({}, {"before": ["env", path], "syncrun": "syncrun"}):
                job = self.job(engine, ["calls"], more=["--dry-run"], **how)
                self.succeeds(job)
                self.assertRegex(job.text, r"nodes: 3, started by mpirun")
                self.assertRegex(job.text, r"transport: (Open MPI|MPICH) [0-9.]+")
                self.assertIn("eth0 10.77.0.1", job.text)

    def test_the_doctor_reports_each_node_and_the_ways_between_them(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            done = self.hosts.run("n1", engine.command(self.hosts, 2, [self.options.syncrun, "doctor"]), timeout=RUN_LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for node in ("n1", "n2"):
                self.assertRegex(done.stdout, rf"syncrun doctor on {node}: nothing is wrong")
                self.assertRegex(done.stdout, rf"memory copy, all ranks on {node} +[0-9.]+ GB/s")
            self.assertRegex(done.stdout, r"call of one rank on n2 +[0-9.]+ us")
            self.assertRegex(done.stdout, r"values to one rank on n2 +[0-9.]+ GB/s")
            self.assertRegex(done.stdout, r"all_reduce of 1 MiB +[0-9.]+ ms")
            self.check_nothing_left()

    def test_ranks_of_all_nodes_are_measured(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            job = self.job(engine, ["measure"])
            self.succeeds(job, "6 weights, sum 1.000")
            mean = re.search(r"^1200 rows, mean (\S+)$", job.text, re.MULTILINE)
            self.assertAlmostEqual(float(mean[1]), 599.5, places=10)  # the weights and so the rounding differ from run to run
            for rank in range(6):
                self.assertIn(f"rank {rank}: a value of 1 MiB", job.text)

    def test_workers_have_the_variables_of_other_launchers(self):
        for engine in self.for_each_engine():
            job = self.job(engine, ["body", "5"], nodes=2)
            job.await_line("in the body")
            workers = [hosts.variables_of(pid) for name in ("n1", "n2") for pid in self.hosts.pids(name, self.options.program)]
            workers = sorted((each for each in workers if "RANK" in each), key=lambda each: int(each["RANK"]))
            self.assertEqual([(each["RANK"], each["NODE_RANK"], each["MASTER_ADDR"]) for each in workers],
                             [("0", "0", "n1"), ("1", "0", "n1"), ("2", "1", "n1"), ("3", "1", "n1")])  # fmt: skip
            ports = {int(each["MASTER_PORT"]) for each in workers}
            self.assertEqual(len(ports), 1, "all ranks meet at one port")
            self.assertGreater(min(ports), 0)
            self.succeeds(job)

    def test_workers_wait_for_their_turn_where_the_carriers_have_no_core(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        if len(cores) < 2 or os.sched_getscheduler(0) != os.SCHED_OTHER:
            self.skipTest("two cores and the ordinary policy are required")
        bound = ["taskset", "-c", ",".join(map(str, cores))]
        for workers, policy in ((2, os.SCHED_BATCH), (1, os.SCHED_OTHER)):
            job = self.job(ENGINES["openmpi"], ["body", "20"], nodes=2, workers=workers, before=bound)
            job.await_line("in the body")
            for name in ("n1", "n2"):
                carrier, *ranks = self.hosts.pids(name, self.options.program)
                self.assertEqual(os.sched_getscheduler(carrier), os.SCHED_OTHER)
                self.assertEqual([os.sched_getscheduler(rank) for rank in ranks], [policy] * workers)
            job.kill()
            self.check_nothing_left()

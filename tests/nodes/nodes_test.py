#!/usr/bin/env python3
"""Tests of sessions on several hosts: starts, the engines' conventions, faults, bad input."""

import argparse
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import engines
import hosts
from engines import ENGINES
from jobs import RUN_LIMIT_S, Job
from links_on_hosts import BreakingLinks, ValuesOverLinks
from respawns_on_hosts import RespawnsOnHosts
from starts_on_hosts import StartsOnHosts
from values_on_hosts import ValuesOnHosts

SKIP_CODE = 77
# After a fault, a job has to say which node it was, and to end, within this time. The issue of silence itself is 3 s.
VERDICT_LIMIT_S = 3.5
END_LIMIT_S = 15
BUSY_S = 15  # what limits get in addition, because other programs may use this machine; matrix.py measures without them
# Of a file with 600 rows of 2 numbers.
NPY_HEADER = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (600, 2), }".ljust(117) + b"\n"
ONE = struct.pack("<d", 1)
options = None


class OnHosts(unittest.TestCase):
    """Three hosts for the tests of a class."""

    count = 3
    with_slurm = False
    is_patient = False  # see Hosts

    @classmethod
    def setUpClass(cls):
        cls.hosts = hosts.Hosts(cls.count, keep=[options.build, Path(options.program).parent, hosts.HERE.parents[1] / "data"],
                                is_patient=cls.is_patient)
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.down)
        if cls.with_slurm and engines.why_impossible(*engines.Srun.tools) is None:
            engines.Slurm(cls.hosts)

    def tearDown(self):
        """What a failed test leaves would make those after it fail."""
        for name in self.hosts.names:
            for pid in self.ours_on(name):
                self.hosts.kill(pid)

    def for_each_engine(self, names=tuple(ENGINES)):
        for name in names:
            engine = ENGINES[name]
            if reason := engines.why_impossible(*engine.tools):
                self.skipTest(reason)
            yield engine

    @property
    def options(self):
        return options

    def job(self, engine, action, **kwargs):
        job = Job(self, engine, action, **{"syncrun": options.syncrun, "program": options.program, **kwargs})
        self.addCleanup(job.kill)
        return job

    def start(self, *action, engine="openmpi", **kwargs):
        """A job that waits for go_on()."""
        job = self.job({**ENGINES, **engines.OTHERS}[engine], action, stdin=subprocess.PIPE, **kwargs)
        self.addCleanup(job.process.stdin.close)
        return job

    @staticmethod
    def go_on(job):
        job.process.stdin.write("\n")
        job.process.stdin.flush()

    def succeeds(self, job, *texts, limit=RUN_LIMIT_S):
        """The job ends without an error and leaves nothing. Returns its output, which has these texts."""
        self.assertEqual(job.finish(limit), 0, job.text)
        for text in texts:
            self.assertIn(text, job.text)
        self.check_nothing_left()
        return job.text

    def fails(self, job, *patterns, limit=RUN_LIMIT_S):
        """The job ends with an error and leaves nothing. Returns its output, which matches these patterns."""
        self.assertNotEqual(job.finish(limit), 0, job.text)
        for pattern in patterns:
            self.assertRegex(job.text, pattern)
        self.check_nothing_left()
        return job.text

    def on_one_node(self, ranks, *action, host="n1", lines=""):
        """The output of the program on one host, without an engine. It reads these lines."""
        command = [options.syncrun, "-n", str(ranks), options.program, *map(str, action)]
        done = self.hosts.run(host, command, timeout=RUN_LIMIT_S, input=lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def ours_on(self, name):
        return self.hosts.pids(name, options.program) + self.hosts.pids(name, options.syncrun)

    def network_bytes(self):
        """What each host has received and sent."""
        numbers = {}
        for name in self.hosts.names:
            lines = Path(f"/proc/{self.hosts.init[name]}/net/dev").read_text().splitlines()
            fields = next(line for line in lines if "eth0:" in line).split()
            numbers[name] = (int(fields[1]), int(fields[9]))
        return numbers

    def check_nothing_left(self, but=()):
        """No process of the program, and no file of shared memory."""
        end = time.monotonic() + END_LIMIT_S
        for name in self.hosts.names:
            while name not in but and (left := self.ours_on(name)):
                if time.monotonic() > end:
                    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
                    self.fail(f"left on {name}: {left} {lines}")
                time.sleep(0.02)


class Starts(StartsOnHosts, OnHosts):
    with_slurm = True
    is_patient = True

    def test_calls_give_the_same_results_on_each_engine(self):
        for engine in self.for_each_engine():
            self.succeeds(self.job(engine, ["calls"]), "0 101 210 311 420 521", "as expected on n1 n2 n3")

    def test_shared_variables_have_a_copy_on_each_rank_of_each_node(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            self.succeeds(self.job(engine, ["variables"]), "as expected")

    def test_the_digits_train_with_the_losses_of_one_node(self):
        if not options.digits:
            self.skipTest("the demo was not built")
        # In float64, sums in another order differ by less than the programs print.
        arguments = ["--epochs", "2", "--dtype", "float64"]
        one = subprocess.run([options.syncrun, "-n", "6", options.digits, *arguments], text=True, capture_output=True,
                             timeout=RUN_LIMIT_S)  # fmt: skip
        self.assertEqual(one.returncode, 0, one.stderr)
        wanted = re.findall(r"loss \S+  validation loss \S+|test accuracy.*", one.stdout)
        self.assertEqual(len(wanted), 3, one.stdout)
        for engine in self.for_each_engine():
            job = self.job(engine, arguments, program=options.digits)
            self.succeeds(job, *wanted)

    def test_devices_can_be_chosen_by_node(self):
        for engine in self.for_each_engine(("openmpi",)):
            command = engine.command(self.hosts, 3, [options.syncrun, "--devices", "n1:cpu0,n3:cpu0,n3:cpu1,n2:cpu1",
                                                     options.program, "calls"])  # fmt: skip
            done = self.hosts.run("n1", command, timeout=RUN_LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("0 110 220 321", done.stdout)

    def test_files_are_mapped_on_every_node(self):
        file = Path(tempfile.mkdtemp(dir=self.hosts.folder)) / "x.npy"
        file.write_bytes(NPY_HEADER + 1200 * ONE)
        for engine in self.for_each_engine(("openmpi",)):
            for action in ("map", "map-raw"):
                self.succeeds(self.job(engine, [action, file]), "sum 1200")

    def test_weights_divide_rows_among_all_ranks(self):
        for engine in self.for_each_engine(("openmpi",)):
            job = self.job(engine, ["weights"])
            self.succeeds(job)
            self.assertIn("100 100 200 200 300 300 mean 599.5\n", job.text + "\n")

    def test_static_data_crosses_once_and_then_only_indices(self):
        data, epochs, batches, indices = 16 << 20, 10, 16, 8 * 4096
        for name in ("openmpi", "mpich"):
            job = self.start("epochs", engine=name)
            job.await_line("the epochs begin")
            before = self.network_bytes()
            self.go_on(job)
            job.await_line("the epochs are over")
            # Each node gets all indices of a batch. A message has a few hundred bytes besides. Packets have headers.
            most = 1.05 * data + epochs * (indices + batches * 2048)
            after = self.network_bytes()
            for host in self.hosts.names[1:]:
                got = after[host][0] - before[host][0]
                print(f"  {name}: {host} has received {got / data:.3f} of the data", flush=True)
                self.assertLess(got, most)
                self.assertGreater(got, 0.9 * data)
            self.go_on(job)
            self.succeeds(job)


class Conventions(OnHosts):
    with_slurm = True
    is_patient = True

    def test_the_exit_code_is_the_programs(self):
        for engine in self.for_each_engine():
            job = self.job(engine, ["exit", 7])
            self.assertEqual(job.finish(), 7, job.text)
            self.check_nothing_left()

    def test_a_failure_names_rank_and_node(self):
        for engine in self.for_each_engine():
            job = self.job(engine, ["fail", 5])
            self.fails(job, r"rank 5 \(n3:cpu1, pid \d+\) failed in call 'fail_on' \(phase function\): it broke",
                       r"node 1: the master has ended the job with exit code 1: rank 5")

    def test_input_goes_to_the_master_only(self):
        for engine in self.for_each_engine():
            job = self.job(engine, ["input"], stdin=subprocess.PIPE)
            job.process.stdin.write("x" * 10000)
            job.process.stdin.close()
            self.succeeds(job, "input 10000")

    def test_lines_of_workers_name_node_and_rank_and_are_in_the_logs_of_each_node(self):
        for engine in self.for_each_engine(("openmpi",)):
            folder = tempfile.mkdtemp(dir=self.hosts.folder)
            job = self.job(engine, ["abort", 3], more=["--log-dir", folder])
            self.fails(job)
            self.assertIn("[n2, rank 3] last words", job.text)
            self.assertIn("last words", Path(folder, "rank3.log").read_text())

    def test_the_options_of_output_hold_on_all_nodes(self):
        stamp = r"(?m)^20\d\d-\d\d-\d\dT[\d:.]+Z "
        for engine in self.for_each_engine(("openmpi",)):
            folder = tempfile.mkdtemp(dir=self.hosts.folder)
            more = ["--log-dir", folder, "--timestamps", "--no-tag", "--error-file", str(Path(folder, "error"))]
            self.fails(self.job(engine, ["abort", 3], more=more), stamp + "last words")
            error = json.loads(Path(folder, "error").read_text())
            self.assertEqual([error["kind"], error["rank"], error["node"], error["device"]],
                             ["worker_lost", 3, "n2", "cpu1"], error)
            self.assertEqual(json.loads(Path(folder, "error.node1").read_text())["exit_code"], 1)
            job = self.job(engine, ["abort", 3], more=[*more, "--redirect", "3"])
            self.fails(job)
            self.assertNotRegex(job.text, stamp + "last words")

    def test_sigterm_ends_the_job(self):
        for engine in self.for_each_engine():
            job = self.job(engine, ["body", 600])
            job.await_line("in the body")
            os.kill(self.hosts.pids("n1", engine.process)[0], signal.SIGTERM)
            job.finish()  # an engine may return 0
            self.assertRegex(job.text, "stopped by SIGTERM|Job step aborted")
            self.check_nothing_left()

    def test_scancel_ends_the_job(self):
        for engine in self.for_each_engine(("pmix", "pmi2")):
            job = self.job(engine, ["body", 600])
            job.await_line("in the body")
            number = self.hosts.run("n1", ["squeue", "-h", "-o", "%i"]).stdout.split()[0]
            self.hosts.run("n1", ["scancel", number])
            self.fails(job)


class Collectives(ValuesOverLinks, OnHosts):
    """`Comm` in the bodies of functions."""

    with_slurm = True

    def test_each_one_gives_the_results_of_one_node(self):
        for nodes in (2, 3):
            expected = self.on_one_node(2 * nodes, "collectives")
            for engine in self.for_each_engine(("openmpi", "mpich") if nodes == 2 else tuple(ENGINES)):
                job = self.job(engine, ["collectives"], nodes=nodes)
                self.succeeds(job, *expected.splitlines())

    def test_failures_end_the_call_on_every_node_and_the_session_continues(self):
        for engine in self.for_each_engine(("openmpi",)):
            for rank in (0, 3, 4):
                job = self.job(engine, ["fail-collectives", rank])
                self.succeeds(job)
                self.assertRegex(job.text, rf"throws in time 1: rank {rank} .*it broke")
                self.assertRegex(job.text, rf"skips in time 1: .*rank {rank} has left the call, and rank \d is still in one")
                self.assertRegex(job.text, rf"disagrees in time 1: .*rank {rank} calls all_reduce of 100000 float64")
                self.assertEqual(job.text.count("sum 6"), 3, job.text)

    def test_the_nodes_exchange_blocks_while_the_program_computes(self):
        for engine in self.for_each_engine(("openmpi",)):
            job = self.job(engine, ["meanwhile"])
            self.succeeds(job)
            late = float(re.search(r"the last rank ended (\S+) s after the program", job.text)[1])
            self.assertLess(late, 0, job.text)

    def test_a_rank_that_does_not_come_is_named_at_the_deadline(self):
        for engine in self.for_each_engine(("openmpi",)):
            job = self.job(engine, ["late", 3], more=["--timeout", "6"])
            self.fails(job, r"call 'come_late'.*6000 ms", r"rank 3 \(n2:cpu1, pid \d+\) is in phase function",
                       r"rank 0 \(n1:cpu0, pid \d+\) is in phase collective")

    def look(self, name, *words):
        """The output of a subcommand of syncrun on a host."""
        done = self.hosts.run(name, [options.syncrun, *words])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_top_and_stacks_show_the_ranks_of_all_nodes_on_the_first_one(self):
        for engine in self.for_each_engine(("openmpi",)):
            job = self.job(engine, ["late", 3], more=["--timeout", "0"])
            job.await_line("node 2")
            late = r"   3     1 +\d+  cpu.? +function +come_late "
            waits = r"   5     2 +\d+  cpu.? +collective +come_late "
            end = time.monotonic() + RUN_LIMIT_S
            while not (re.search(late, top := self.look("n1", "top", "--once", "--interval", "0.1")) and re.search(waits, top)):
                self.assertLess(time.monotonic(), end, top)
            self.assertNotIn("   1     0", self.look("n2", "top", "--once", "--interval", "0.1"))
            stacks = self.look("n1", "stacks")
            self.assertRegex(stacks, r"rank 0 \(cpu0, pid \d+\) is in phase collective, call 'come_late'")
            self.assertRegex(stacks, r"rank 3 \(n2:cpu1, pid \d+\) is in phase function\n(    #.*\n)*    #\d+ come_late ")
            self.assertEqual(len(re.findall("rank \\d", stacks)), 6, stacks)
            self.assertEqual(len(re.findall("rank \\d", self.look("n2", "stacks"))), 2)

    def test_a_wrapper_belongs_to_the_node_of_its_rank(self):
        for engine in self.for_each_engine(("openmpi",)):
            self.succeeds(self.job(engine, ["calls"], more=["--wrap", "1,4:env A=B"]))
            for command, pattern in (("false", "rank 3 .*its wrapper 'false' exited with code 1 before the worker had begun"),
                                     ("no-such-tool", r"node 1 \(n2\): --wrap \(SYNCRUN_WRAP\) '3:no-such-tool'")):  # fmt: skip
                self.fails(self.job(engine, ["calls"], more=["--wrap", f"3:{command}"]), pattern)


class Values(ValuesOnHosts, OnHosts):
    """Arrays on the devices of all nodes."""

    @property
    def examples(self):
        return Path(options.build) / "demos" / "examples"


PHASES = {"reduce": ("in the collectives", ["reduce", 600]), "body": ("in the body", ["body", 600]), "idle": ("idle", ["idle", 8]), "stream": ("streaming", ["stream", 600]), "move": ("the value is on its way", ["await-value", 600])}


class BreakingHosts(OnHosts):
    """Each test ends the hosts that it breaks, so each has hosts of its own."""

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        self.hosts = hosts.Hosts(self.count, keep=[options.build, Path(options.program).parent, hosts.HERE.parents[1] / "data"])
        self.hosts.__enter__()
        self.addCleanup(self.hosts.down)

    def agent_of(self, name):
        """The agent (on n1, the master) has the command line of its workers, and is older."""
        return self.hosts.pids(name, options.program)[0]

    def worker_of(self, name, local_rank=1):
        return self.hosts.pids(name, options.program)[local_rank - 2]

    def after(self, engine, phase, fault, **kwargs):
        """Starts a job, lets `fault` happen in this phase, and returns the job and the time."""
        line, action = PHASES[phase]
        job = self.job({**ENGINES, **engines.OTHERS}[engine], action, **kwargs)
        job.await_line(line)
        time.sleep(0.3)
        fault()
        return job, time.monotonic()

    def check_verdict(self, job, began, pattern, limit, but=(), ends=True):
        when = job.await_line(pattern, limit + BUSY_S)
        self.assertLess(when - began, limit + BUSY_S, job.text)
        if ends:
            job.finish()
        self.check_nothing_left(but)
        print(f"  {self.id().rsplit('.', 1)[-1]}: {when - began:.3f} s", flush=True)


class Faults(BreakingLinks, RespawnsOnHosts, BreakingHosts):
    """Faults that are not in the table of matrix.py."""

    def test_worker_killed_while_its_value_is_on_its_way(self):
        for engine in ("openmpi", "mpich"):
            with self.subTest(engine=engine):
                job, began = self.after(engine, "move", lambda: os.kill(self.worker_of("n2", 0), signal.SIGKILL))
                self.check_verdict(job, began, r"rank 2 \(n2:cpu0.*was lost in call 'make_slowly'.*SIGKILL", 1)

    def test_worker_killed_while_it_waits_for_a_value(self):
        job, began = self.after("openmpi", "move", lambda: os.kill(self.worker_of("n3", 1), signal.SIGKILL))
        self.check_verdict(job, began, r"rank 5 \(n3:cpu1.*was lost.*SIGKILL", 1)

    def test_link_between_two_agents_down(self):
        """The master hears from both. Their ranks wait for each other, in a collective or for a Value."""
        def part():
            self.hosts.run("n2", ["ip", "route", "add", "blackhole", f"{hosts.NETWORK}.3/32"], check=True)

        for engine in ("openmpi", "mpich"):
            with self.subTest(engine=engine):
                job, began = self.after(engine, "reduce", part)
                self.check_verdict(job, began, r"nothing is heard from node [12] \(n[23]\) for 3\.7 s, but the master hears "
                                   "from both: the network between them is down", 4)  # fmt: skip
                self.hosts.run("n2", ["ip", "route", "del", "blackhole", f"{hosts.NETWORK}.3/32"], check=True)

    def test_agent_stopped_under_srun(self):
        if reason := engines.why_impossible(*engines.Srun.tools):
            self.skipTest(reason)
        engines.Slurm(self.hosts)
        job, began = self.after("pmix", "body", lambda: os.kill(self.agent_of("n3"), signal.SIGSTOP))
        self.check_verdict(job, began, r"node 2 \(n3\) is silent for 3\.0 s", VERDICT_LIMIT_S)
        self.assertIn("the agent of node 2 (n3) was stopped by a signal, and is killed", job.text)


class BadInput(OnHosts):
    with_slurm = True
    is_patient = True  # several nodes refuse the input, each with its own words

    def refused(self, engine, pattern, **kwargs):
        self.fails(self.job(engine, kwargs.pop("action", ["calls"]), **kwargs), pattern)

    def refuses(self, pattern, *command):
        """A command that starts no job."""
        done = self.hosts.run("n1", command, timeout=RUN_LIMIT_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, pattern)

    def test_another_number_of_nodes(self):
        for engine in self.for_each_engine():
            self.refused(engine, r"--nodes 4: expected as many tasks, one per node, but .* started 3\. Give the engine", more=["--nodes", "4"])

    def test_two_tasks_on_a_node(self):
        for engine in self.for_each_engine(("pmix",)):
            self.refuses("2 tasks on one node.*--ntasks-per-node=1",
                         "srun", "--mpi=pmix", "-N1", "-n2", "--overcommit", options.syncrun, options.program, "calls")  # fmt: skip

    def test_srun_without_mpi(self):
        for engine in self.for_each_engine(("pmix",)):
            self.refuses("cannot find each other.*--mpi=pmix",
                         "srun", "--mpi=none", "-N3", "--overcommit", options.syncrun, options.program, "calls")  # fmt: skip

    def test_restarts(self):
        for engine in self.for_each_engine(("openmpi",)):
            self.refused(engine, r"--max-restarts 2: expected no such option in a job that .* has started.*syncrun --launcher auto --nodes 3", more=["--max-restarts", "2"])

    def test_another_build_on_one_node(self):
        for engine in self.for_each_engine(("openmpi",)):
            self.refused(engine, r"node 1 \(n2\) has another build of the program: expected build id", syncrun=self.switch())

    def switch(self):
        """A script that starts another program on n2."""
        other = self.hosts.folder / "other_program"
        shutil.copy(options.other_program or options.program, other)
        if not options.other_program:
            self.skipTest("no other program was given")
        script = self.hosts.folder / "switch.sh"
        script.write_text(
            f'#!/bin/sh\n[ "$(hostname)" = n2 ] && set -- "$1" "$2" {other} "$4"\nexec {options.syncrun} "$@"\n'
        )
        script.chmod(0o755)
        return script

    def test_a_program_that_is_missing_on_a_node(self):
        for engine in self.for_each_engine(("openmpi",)):
            script = self.hosts.folder / "missing.sh"
            script.write_text(
                f'#!/bin/sh\n[ "$(hostname)" = n3 ] && set -- "$1" "$2" /no/such/program "$4"\nexec {options.syncrun} "$@"\n'
            )
            script.chmod(0o755)
            self.refused(engine, r"node 2 \(n3\): /no/such/program: program not found", syncrun=script)

    def special_on(self, name, command):
        """A script in place of syncrun that runs a command first on one node. The command may replace the script."""
        script = self.hosts.folder / f"special.{time.monotonic_ns()}.sh"
        script.write_text(f'#!/bin/sh\n[ "$(hostname)" = {name} ] && {{ {command}; }}\nexec {options.syncrun} "$@"\n')
        script.chmod(0o755)
        return script

    def check_late(self, engine, absent, pattern):
        """syncrun does not start on one node. The others say so soon after the limit, and end. The engine waits for the
        process that is there in place of syncrun, until this test ends it."""
        began = time.monotonic()
        job = self.job(engine, ["calls"], more=["--start-timeout", "6"], syncrun=self.special_on(absent, "exec sleep 60"))
        when = job.await_line(r"MPI has not connected the nodes within 6000 ms: expected 3 nodes, " + pattern +
                              r"\. .*\(--start-timeout sets another limit\)")  # fmt: skip
        self.assertLess(when - began, 6 + BUSY_S, job.text)
        self.check_nothing_left()
        self.hosts.run(absent, ["pkill", "-x", "sleep"])
        self.fails(job)

    def test_a_node_that_never_comes(self):
        for engine in self.for_each_engine():
            # Only the user of MPICH's mpirun knows on which host a missing node would be.
            name = "" if engine is ENGINES["mpich"] else r" \(n3\)"
            self.check_late(engine, "n3", r"found node 0 \(n1\), node 1 \(n2\); not found: node 2" + name)

    def test_a_masters_node_that_never_comes(self):
        for engine in self.for_each_engine(("openmpi", "pmi2")):
            self.check_late(engine, "n1", r"found node 1 \(n2\), node 2 \(n3\); not found: node 0 \(n1\)")

    def test_a_node_that_cannot_be_reached(self):
        for engine in self.for_each_engine(("openmpi",)):
            script = self.special_on("n3", "ip link set eth0 down")
            try:
                job = self.job(engine, ["calls"], more=["--start-timeout", "6"], syncrun=script)
                job.await_line(r"node 0: MPI has not connected the nodes within 6000 ms: expected 3 nodes, found "
                               r"node 0 \(n1\), node 1 \(n2\); not found: node 2 \(n3\)", 60)  # fmt: skip
                self.check_nothing_left()
            finally:
                job.kill()
                self.hosts.run("n3", ["ip", "link", "set", "eth0", "up"], check=True)

    def test_gpus_that_are_split_by_task(self):
        for engine in self.for_each_engine(("pmix",)):
            self.refuses("2 tasks on one node, expected one task per node, which uses all devices of the node. "
                         "Use --ntasks-per-node=1, and --gpus-per-node in place of --gpus-per-task",
                         "srun", "--mpi=pmix", "-N3", "--ntasks-per-node=2", "--overcommit", "sh", "-c",
                         'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID exec "$@"', "sh", options.syncrun, options.program, "calls")  # fmt: skip

    def test_a_number_of_workers_that_contradicts_the_devices(self):
        for engine in self.for_each_engine(("openmpi",)):
            # Each node has a device in the list. One without would refuse the list for this reason, perhaps as the first.
            self.refused(engine, "-n and --devices disagree: got -n 2 and 1 CPU device", more=["--devices", "n1:cpu0,n2:cpu0,n3:cpu0"])

    def test_a_start_outside_of_an_allocation(self):
        self.refuses(r"--nodes 3: expected as many tasks, one per node, but no engine has started this\. Add --launcher auto",
                     options.syncrun, "--nodes", "3", "-n", "2", options.program, "calls")  # fmt: skip

    def test_less_memory_on_one_node(self):
        """A control group of n3 has 8 MiB left, and its share of the rows is 16 MiB."""
        group = self.hosts.folder / "cgroup"
        for folder in (group, group / "memory"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, value in {"memory.max": 64 << 20, "memory.current": 56 << 20, "memory.limit_in_bytes": 64 << 20,
                                "memory.usage_in_bytes": 56 << 20}.items():  # fmt: skip
                (folder / name).write_text(f"{value}\n")
        self.hosts.run("n3", ["mount", "--bind", group, "/sys/fs/cgroup"], check=True)
        try:
            for engine in self.for_each_engine(("openmpi",)):
                self.refused(engine, r"node 2 \(n3\): the room for rows on this node requires \d+ bytes of shared memory; \d+ bytes are "
                             r"available.*SYNCRUN_MEMORY_CHECK=off", action=["fresh", 48])  # fmt: skip
        finally:
            self.hosts.run("n3", ["umount", "/sys/fs/cgroup"], check=True)

    def test_a_file_that_differs_on_a_node(self):
        folder = Path("/dev/shm")  # each host has its own
        for number, name in enumerate(self.hosts.names):
            source = self.hosts.folder / f"{name}.npy"
            source.write_bytes(NPY_HEADER + 1200 * (ONE if number < 2 else bytes(8)))
            self.hosts.run(name, ["cp", source, folder / "x.npy"], check=True)
        for engine in self.for_each_engine(("openmpi",)):
            for action in ("map", "map-raw"):
                self.refused(engine, r"rank [45] \(n3:.*x.npy: expected the file that the master has mapped",
                             action=[action, folder / "x.npy"])  # fmt: skip
        self.hosts.run("n3", ["cp", self.hosts.folder / "n1.npy", folder / "x.npy"], check=True)
        self.hosts.run("n2", ["rm", folder / "x.npy"], check=True)
        for engine in self.for_each_engine(("openmpi",)):
            self.refused(engine, r"rank [23] \(n2:.*cannot open /dev/shm/x.npy on its node", action=["map", folder / "x.npy"])


def main(groups=("Starts", "Conventions", "Collectives", "Values", "Faults", "BadInput")):
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=groups)
    parser.add_argument("--syncrun", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--digits", help="the demo that trains on the digits")
    parser.add_argument("--torch-program", help="the program that trains models of LibTorch")
    parser.add_argument("--other-program", help="another program, for the test of different builds")
    parser.add_argument("--build", required=True, help="the build folder, which all hosts share")
    options, rest = parser.parse_known_args()
    if reason := hosts.why_impossible() or engines.why_impossible("mpirun.openmpi", "mpirun.mpich"):
        print(f"skipped: {reason}")
        sys.exit(SKIP_CODE)
    unittest.main(argv=[sys.argv[0], options.group, *rest], verbosity=2)


if __name__ == "__main__":
    main()

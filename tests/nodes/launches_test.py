#!/usr/bin/env python3
"""Tests of jobs whose engine syncrun starts (syncrun --launcher): starts, ends, signals, restarts."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import engines
import nodes_test
from jobs import RUN_LIMIT_S
from launchers import LAUNCHERS, SRUN
from nodes_test import BUSY_S, BreakingHosts, OnHosts

START_LIMIT_S = 5  # until a start that has failed on one host has ended on all


class WithSpares:
    """A launcher with one more host than nodes."""

    def __init__(self, launcher):
        self.launcher = launcher
        self.name, self.tools = launcher.name, launcher.tools

    def command(self, test_hosts, nodes, program):
        return self.launcher.command(test_hosts, nodes, program, spares=1)


class InAllocation:
    """srun in an allocation of all hosts, which a node that fails does not end."""

    name = "salloc"

    @staticmethod
    def command(test_hosts, nodes, program):
        del nodes
        return ["salloc", "-Q", f"-N{len(test_hosts.names)}", "--no-kill", "--ntasks-per-node=1", "--cpus-per-task=2",
                program[0], "--launcher", "srun", *program[1:]]  # fmt: skip


class InOneTask:
    """A launcher in the only task of an engine."""

    def __init__(self, engine, launcher):
        self.engine, self.launcher = engine, launcher

    def command(self, test_hosts, nodes, program):
        return self.engine.command(test_hosts, 1, self.launcher.command(test_hosts, nodes, program))


class ByLaunchers:
    def for_each_launcher(self, names=tuple(LAUNCHERS)):
        for name in names:
            launcher = LAUNCHERS[name]
            if reason := engines.why_impossible(*launcher.tools):
                self.skipTest(reason)
            with self.subTest(launcher=launcher.name):
                yield launcher

    def submit(self, folder, *lines):
        """Gives Slurm a batch script, and returns its output when it has ended."""
        script, output = folder / "job.sh", folder / "output"
        script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        self.hosts.run("n1", ["sbatch", "--wait", f"--output={output}", script], timeout=RUN_LIMIT_S, check=False)
        return output.read_text()


class Launches(ByLaunchers, OnHosts):
    with_slurm = True
    is_patient = True

    def test_each_one_starts_the_nodes_and_ends_with_the_code_of_the_program(self):
        for launcher in self.for_each_launcher():
            self.succeeds(self.job(launcher, ["calls"]), "as expected on n1 n2 n3")
            job = self.job(launcher, ["exit", 7])
            self.assertEqual(job.finish(), 7, job.text)
            self.assertRegex(job.text, r"syncrun: the program exited with code 7$")

    def test_words_and_links_reach_every_node_as_they_are(self):
        """mpirun takes ':' for the end of a command. On each host, the link leads to another folder."""
        link = Path(self.options.syncrun).name
        for number, host in enumerate(self.hosts.names):
            script = f"mkdir -p /tmp/{number} && ln -s {self.options.syncrun} /tmp/{number}/{link} && ln -s {number} /tmp/bin"
            self.hosts.run(host, ["sh", "-ec", script], check=True)
        for launcher in self.for_each_launcher():
            words = ["a b", ":", "c", "\\:"]
            job = self.job(launcher, ["words", *words], syncrun=f"/tmp/bin/{link}")
            self.succeeds(job, "".join(f"[{word}]" for word in words))

    def test_a_launch_may_be_the_only_task_of_an_engine(self):
        outer = engines.ENGINES["openmpi"]
        for name in ("openmpi", "mpich"):
            launcher = LAUNCHERS[name]
            if reason := engines.why_impossible(*launcher.tools):
                self.skipTest(reason)
            with self.subTest(launcher=launcher.name):
                job = self.job(InOneTask(outer, launcher), ["calls"])
                self.succeeds(job, "as expected on n1 n2 n3")

    def test_input_goes_to_the_master(self):
        for launcher in self.for_each_launcher():
            job = self.job(launcher, ["input"], stdin=subprocess.PIPE)
            job.process.stdin.write("x" * 10000)
            job.process.stdin.close()
            self.succeeds(job, "input 10000")

    def test_an_allocation_of_slurm_has_the_nodes_and_their_cores(self):
        if reason := engines.why_impossible("sbatch", *SRUN):
            self.skipTest(reason)
        for launcher in ("auto", "srun", "mpirun.openmpi"):
            text = self.submit(self.hosts.folder, "#SBATCH --nodes=3 --ntasks-per-node=1 --cpus-per-task=2",
                               f"{self.options.syncrun} --launcher {launcher} -n 1 {self.options.program} calls")  # fmt: skip
            self.assertIn("as expected on n1 n2 n3", text)
            self.assertNotIn("too few", text)

    def test_variables_and_path_reach_every_node(self):
        tools = Path(self.options.syncrun).parent
        show = "sh -c 'echo \"$RANK has $COLOUR\"; exec \"$@\"' x"
        for launcher in self.for_each_launcher():
            program = Path(self.options.program)
            job = self.job(launcher, ["calls"], workers=1, program=program.name,
                           more=["-x", "COLOUR=red and blue", "-x", f"PATH={program.parent}:{tools}:{os.environ['PATH']}",
                                 "--wrap", f"*:{show}"])  # fmt: skip
            self.succeeds(job, *(f"{rank} has red and blue" for rank in range(3)))

    def test_a_start_that_fails_on_one_host_ends_on_all(self):
        if reason := engines.why_impossible("objcopy"):
            self.skipTest(reason)
        library = Path(self.options.build) / "lib"
        strip = "objcopy --remove-section=.note.gnu.build-id"
        for host in self.hosts.names:
            script = (f"cp {self.options.program} /tmp/other; cp -a {library} /tmp/lib; "
                      + (f"{strip} /tmp/other; {strip} /tmp/lib/libsyncrun.so.0.1.0" if host == "n3"
                         else f"cp {self.options.program} /tmp/program"))  # fmt: skip
            self.hosts.run(host, ["sh", "-ec", script], check=True)
        for launcher in self.for_each_launcher():
            for program, libraries, pattern in (
                ("/tmp/program", library, r"node 2 \(n3\): /tmp/program: program not found$"),
                ("/tmp/other", library, r"node 2 \(n3\) has another build of the program"),
                (self.options.program, "/tmp/lib", r"node 2 \(n3\) has another build of libsyncrun\.so"),
            ):
                began = time.monotonic()
                job = self.job(launcher, ["calls"], program=program, more=["-x", f"LD_LIBRARY_PATH={libraries}"])
                self.fails(job, pattern)
                took = time.monotonic() - began
                print(f"  {launcher.name}, {program}: {took:.1f} s", flush=True)
                self.assertLess(took, START_LIMIT_S + BUSY_S, job.text)
                if launcher.word == "srun" and program == "/tmp/program":
                    self.assertNotIn("Waiting up to", job.text)  # for KillWait, until the others have ended

    def test_lines_of_all_nodes_are_whole(self):
        """An engine reads 4096 bytes at a time, and passes on those of another node between two reads."""
        count = 20000
        script = self.hosts.folder / "talk.sh"
        script.write_text("#!/bin/sh\nawk 'BEGIN {for (i = 0; i < " + str(count) + "; ++i)"
                          ' printf "line %06d %0" (20 + i % 41) "d\\n", i, 0}\'\nexec "$@"\n')  # fmt: skip
        script.chmod(0o755)
        for launcher in self.for_each_launcher(("openmpi", "mpich", "srun")):
            job = self.job(launcher, ["calls"], more=["--wrap", f"*:{script}"])
            self.succeeds(job, "as expected")
            # MPICH and srun may cut a line of the program itself, and show the lines of ranks of other nodes in between.
            whole = re.findall(r"\[n\d, rank \d\] line \d{6} 0{20,60}$", job.text, re.MULTILINE)
            self.assertEqual(len(whole), 6 * count)

    def test_the_program_saves_after_each_signal(self):
        for launcher in self.for_each_launcher():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
                folder = self.hosts.folder / "checkpoint"
                shutil.rmtree(folder, ignore_errors=True)
                job = self.job(launcher, ["stop", folder])
                job.await_line("it goes on")
                os.kill(self.hosts.pids("n1", f"{self.options.syncrun} --launcher")[0], number)
                job.await_line("^saved")
                self.assertEqual(job.finish(), 0, (number.name, job.text))
                self.check_nothing_left()

    def test_a_job_that_slurm_ends_is_not_started_again(self):
        """Slurm kills all nodes before they can say a last word."""
        for launcher in self.for_each_launcher(("srun", "srun pmi2")):
            job = self.job(launcher, ["stop-never", self.hosts.folder / "checkpoint"], more=["--max-restarts", "2"])
            job.await_line("it goes on")
            self.hosts.run("n1", ["scancel", self.hosts.run("n1", ["squeue", "-h", "-o", "%i"]).stdout.split()[0]], check=True)
            self.fails(job, "restart 1 of 2 is not possible, after: .*; a signal has told all nodes to stop")
            self.assertEqual(self.hosts.run("n1", ["squeue", "-h", "-t", "PD,R"]).stdout, "")

    def test_a_signal_that_ends_the_program_is_no_success(self):
        for launcher in self.for_each_launcher():
            for number in (signal.SIGTERM, signal.SIGINT):
                job = self.job(launcher, ["body", 600], more=["--grace", "1"])
                job.await_line("in the body")
                os.kill(self.hosts.pids("n1", f"{self.options.syncrun} --launcher")[0], number)
                self.assertEqual(job.finish(), 128 + number, job.text)
                self.assertRegex(job.text, f"stopped by {number.name}")
                self.check_nothing_left()


class Relaunches(ByLaunchers, BreakingHosts):
    """Restarts after a failure. Losses of hosts, and of links."""

    count = 4
    epochs = 8

    def digits(self, launcher, folder, more):
        if not self.options.digits:
            self.skipTest("the demo was not built")
        return self.job(launcher, ["--epochs", str(self.epochs), "--checkpoint", str(folder / "run")], workers=1,
                        program=self.options.digits, more=["--max-restarts", "2", *more])  # fmt: skip

    def after_a_checkpoint(self, job, folder):
        end = time.monotonic() + RUN_LIMIT_S
        while not (folder / "run" / "latest").is_symlink():
            self.assertLess(time.monotonic(), end, job.text)
            self.assertIsNone(job.process.poll(), job.text)
            time.sleep(0.001)

    def check_epochs(self, job):
        self.assertEqual(job.finish(150), 0, job.text)
        self.assertRegex(job.text, r"syncrun: restart 1 of 2, after: ")
        self.assertRegex(job.text, r"going on after epoch [1-9]")
        losses = re.findall(r"epoch +(\d+)/\d+  (loss \S+  validation loss \S+)", job.text)
        self.assertEqual([int(epoch) for epoch in sorted({epoch for epoch, _ in losses})], list(range(1, self.epochs + 1)))
        self.assertEqual(len(dict(losses)), len(set(losses)), f"an epoch that was done again has other losses: {job.text}")

    def test_a_lost_worker_leads_to_a_restart_on_the_same_nodes(self):
        engines.Slurm(self.hosts)
        for launcher in self.for_each_launcher(("openmpi", "mpich", "srun")):
            folder = self.hosts.folder / launcher.word
            job = self.digits(launcher, folder, [])
            job.await_line(r"\d workers \(n1:cpu0")
            worker = self.hosts.pids("n2", self.options.digits)[-1]
            self.after_a_checkpoint(job, folder)
            os.kill(worker, signal.SIGKILL)
            self.check_epochs(job)
            self.check_nothing_left()

    def test_a_spare_host_takes_the_place_of_a_lost_one(self):
        for launcher in self.for_each_launcher(("openmpi", "mpich")):
            self.setUp()
            folder = self.hosts.folder / launcher.word
            job = self.digits(WithSpares(launcher), folder, ["--spares", "1"])
            self.after_a_checkpoint(job, folder)
            self.hosts.kill_host("n3")
            self.check_epochs(job)
            self.assertRegex(job.text, r"; n3 does not answer, n4 takes its place")
            self.check_nothing_left(but=("n3",))

    def test_a_spare_host_of_an_allocation_takes_the_place_of_a_lost_one(self):
        if reason := engines.why_impossible("salloc", *SRUN):
            self.skipTest(reason)
        engines.Slurm(self.hosts)
        job = self.digits(InAllocation(), self.hosts.folder, ["--spares", "1"])
        self.after_a_checkpoint(job, self.hosts.folder)
        self.hosts.kill_host("n3")
        self.check_epochs(job)
        self.assertRegex(job.text, r"; n3 does not answer, n4 takes its place")

    def test_an_engine_that_a_dead_link_holds_up_is_ended(self):
        for launcher in self.for_each_launcher(("openmpi", "mpich")):
            self.setUp()
            job = self.job(launcher, ["body", "60"])
            job.await_line("in the body")
            self.hosts.set_link("n3", "down")
            began = time.monotonic()
            self.assertNotEqual(job.finish(20 + BUSY_S), 0, job.text)
            print(f"  {launcher.name}: {time.monotonic() - began:.1f} s", flush=True)
            self.assertRegex(job.text, r"node 2 \(n3\) is silent for 3\.\d s")
            self.check_nothing_left(but=("n3",))

    def test_the_masters_own_broken_link_is_named(self):
        for launcher in self.for_each_launcher(("openmpi", "mpich")):
            self.setUp()
            job = self.job(launcher, ["body", "60"])
            job.await_line("in the body")
            self.hosts.set_link("n1", "down")
            self.assertNotEqual(job.finish(20 + BUSY_S), 0, job.text)
            self.assertRegex(job.text, r"no other node is heard for 3\.\d s: the network of node 0 \(n1\) is down")
            self.assertNotRegex(job.text, r"node [12] \(n[23]\) is silent")
            self.check_nothing_left()


if __name__ == "__main__":
    nodes_test.main(["Launches", "Relaunches"])

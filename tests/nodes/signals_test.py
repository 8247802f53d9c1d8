#!/usr/bin/env python3
"""Tests of signals that tell a job on several hosts to stop. The engine sends them to every node, and the program decides."""

import os
import shutil
import signal
import time

import engines
import nodes_test
from engines import ENGINES
from jobs import RUN_LIMIT_S
from nodes_test import END_LIMIT_S, OnHosts

SIGNALS = ("TERM", "INT", "USR1", "USR2")
ECHO_S = 1  # a signal that comes again so soon is the same request


class Signals(OnHosts):
    with_slurm = True
    is_patient = True  # Open MPI gives the tasks a second between SIGTERM and SIGKILL

    def start_saving(self, engine, action, **kwargs):
        self.folder = self.hosts.folder / "checkpoint"
        shutil.rmtree(self.folder, ignore_errors=True)
        job = self.job(engine, [action, self.folder], **kwargs)
        job.await_line("it goes on")
        return job

    def await_that(self, holds):
        end = time.monotonic() + RUN_LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def send(self, engine, name):
        """Sends a signal to the job: with Slurm's tool, or to mpirun, which passes it on."""
        if isinstance(engine, engines.Srun):
            number = self.hosts.run("n1", ["squeue", "-h", "-o", "%i"]).stdout.split()[0]
            self.hosts.run("n1", ["scancel", "-s", name, number], check=True)
        else:
            os.kill(self.hosts.pids("n1", engine.process)[0], signal.Signals["SIG" + name])

    def test_the_program_saves_after_each_signal(self):
        for engine in self.for_each_engine():
            # MPICH's mpirun dies of SIGUSR2.
            for name in SIGNALS[:3] if engine is ENGINES["mpich"] else SIGNALS:
                with self.subTest(engine=engine.name, signal=name):
                    # After SIGTERM and SIGINT, mpirun of Open MPI leaves a second to its programs. A busy machine needs more.
                    job = self.start_saving(engine, "handle-signals" if name == "TERM" else "stop",
                                            variables={"OMPI_MCA_odls_base_sigkill_timeout": "5"})
                    self.send(engine, name)
                    job.await_line("^saved")
                    code = job.finish()
                    if engine is not ENGINES["openmpi"] or name.startswith("USR"):
                        self.assertEqual(code, 0, job.text)  # Open MPI has a code of its own
                    self.assertNotIn("syncrun: stopped", job.text)
                    self.check_nothing_left()

    def test_agents_outlive_signals_that_come_while_they_start(self):
        """Before run(), and while MPI waits for the master, which waits for a file."""
        for engine in self.for_each_engine():
            with self.subTest(engine=engine.name):
                gate = self.hosts.folder / "gate"
                gate.unlink(missing_ok=True)
                job = self.job(engine, ["stop-late", self.hosts.folder / "checkpoint", gate])
                self.await_that(lambda: all(self.hosts.pids(host, nodes_test.options.program) for host in ("n2", "n3")))
                for _ in range(10):
                    for host in ("n2", "n3"):
                        for pid in self.hosts.pids(host, nodes_test.options.program):
                            for name in SIGNALS:
                                os.kill(pid, signal.Signals["SIG" + name])
                    time.sleep(0.1)
                gate.touch()
                job.await_line("it goes on")
                os.kill(self.hosts.pids("n1", nodes_test.options.program)[0], signal.SIGTERM)
                self.succeeds(job, "saved")

    def test_agents_that_a_tool_has_started_outlive_them_as_soon_as_the_library_is_loaded(self):
        gate = self.hosts.folder / "gate"
        gate.touch()
        for engine in self.for_each_engine(("mpich",)):
            job = self.job(engine, [nodes_test.options.program, "stop-late", self.hosts.folder / "checkpoint", gate], program="env")
            job.await_line("it goes on")
            os.kill(self.hosts.pids("n1", nodes_test.options.program)[0], signal.SIGTERM)
            self.succeeds(job, "saved")

    def test_a_signal_that_nobody_handles_ends_the_job(self):
        for engine in self.for_each_engine():
            for name, verdict in (("TERM", r"syncrun: stopped by SIGTERM"), ("USR1", r"the master \(pid \d+\) was killed by SIGUSR1")):  # fmt: skip
                with self.subTest(engine=engine.name, signal=name):
                    job = self.job(engine, ["body", 600])
                    job.await_line("in the body")
                    self.send(engine, name)
                    job.finish(END_LIMIT_S + nodes_test.BUSY_S)
                    self.assertRegex(job.text, verdict)
                    self.check_nothing_left()

    def test_a_second_signal_ends_everything_at_once(self):
        for engine in self.for_each_engine(("mpich", "pmix")):
            with self.subTest(engine=engine.name):
                job = self.start_saving(engine, "stop-never")
                self.send(engine, "TERM")
                job.await_line("^saved")
                time.sleep(ECHO_S)
                self.send(engine, "TERM")
                job.finish(END_LIMIT_S + nodes_test.BUSY_S)
                self.assertRegex(job.text, "syncrun: stopped by SIGTERM .*, and killed at the second signal")
                self.check_nothing_left()

    def test_agents_that_were_told_to_stop_end_after_their_master(self):
        for engine in self.for_each_engine(("mpich", "pmix")):
            with self.subTest(engine=engine.name):
                job = self.start_saving(engine, "stop-never")
                self.send(engine, "INT")
                job.await_line("^saved")
                os.kill(self.hosts.pids("n1", nodes_test.options.program)[0], signal.SIGKILL)
                job.finish(END_LIMIT_S + nodes_test.BUSY_S)
                self.assertRegex(job.text, r"syncrun: stopped by SIGINT .*: the master \(pid \d+\) was killed by SIGKILL")
                self.check_nothing_left()


if __name__ == "__main__":
    nodes_test.main(["Signals"])

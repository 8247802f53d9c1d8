#!/usr/bin/env python3
"""Tests of jobs on several hosts that start again after a failure, or after they were told to stop, with the script of
docs/nodes.md."""

import os
import re
import signal
import tempfile
import time
from pathlib import Path

import engines
import hosts
import nodes_test
from engines import ENGINES
from nodes_test import OnHosts

DOCS = hosts.HERE.parents[1] / "docs" / "nodes.md"
EPOCHS = 8  # with one worker on each host: a busy machine takes seconds for an epoch
END_LIMIT_S = 150
STEPS = 300  # a step takes 0.2 s until the job starts again
STEP = re.compile(r"step (\d+) (loss \S+)")
LOSS = re.compile(r"epoch +(\d+)/\d+  (loss \S+  validation loss \S+)")


def script_of_docs(pattern):
    """The only script of the page that has this text."""
    found = [code for code in re.findall(r"```sh\n(#!.*?)```", DOCS.read_text(), re.DOTALL) if pattern in code]
    assert len(found) == 1, (pattern, found)
    return found[0]


class Restarts(OnHosts):
    with_slurm = True

    def setUp(self):
        if not nodes_test.options.digits:
            self.skipTest("the demo was not built")
        self.folder = Path(tempfile.mkdtemp(dir=self.hosts.folder))
        self.output = self.folder / "output"
        self.output.touch()

    def write(self, text, replacements):
        for old, new in replacements.items():
            self.assertIn(old, text)
            text = text.replace(old, str(new))
        script = self.folder / "job.sh"
        script.write_text(text)
        script.chmod(0o755)
        return script

    def digits(self):
        return f"{nodes_test.options.digits} --epochs {EPOCHS} --checkpoint {self.folder}/run"

    losses = None

    def wanted(self):
        """The losses of a run that nothing interrupts, by epoch."""
        if Restarts.losses is not None:
            return Restarts.losses
        job = self.job(ENGINES["openmpi"], ["--epochs", str(EPOCHS)], workers=1, program=nodes_test.options.digits)
        self.succeeds(job, limit=END_LIMIT_S)
        Restarts.losses = dict(LOSS.findall(job.text))
        self.assertEqual(len(Restarts.losses), EPOCHS, job.text)
        return Restarts.losses

    def await_output(self, pattern):
        end = time.monotonic() + END_LIMIT_S
        while not re.search(pattern, self.output.read_text()):
            self.assertLess(time.monotonic(), end, f"no {pattern!r}: {self.output.read_text()}")
            time.sleep(0.01)

    def kill_a_worker(self):
        """Kills a worker on n2 as soon as there is a checkpoint, which is that of the first epoch."""
        self.await_output(r"\d workers \(n1:cpu0")
        worker = self.hosts.pids("n2", nodes_test.options.digits)[-1]
        end = time.monotonic() + END_LIMIT_S
        while not (self.folder / "run" / "latest").is_symlink():
            self.assertLess(time.monotonic(), end, f"no checkpoint: {self.output.read_text()}")
            time.sleep(0.001)
        os.kill(worker, signal.SIGKILL)

    def check_losses(self, wanted):
        """The second start continues after the last checkpoint, with the losses of a run without a failure."""
        text = self.output.read_text()
        self.assertRegex(text, r"rank 1 \(n2:cpu0, pid \d+\) was lost.*SIGKILL")
        self.assertRegex(text, r"going on after epoch [1-9]")
        seen = LOSS.findall(text)
        self.assertEqual(dict(seen), wanted, text)
        self.assertTrue(all(losses == wanted[epoch] for epoch, losses in seen), text)
        self.assertLessEqual(len(seen), EPOCHS + 1, f"more was done again than the last epoch: {text}")
        self.check_nothing_left()

    # ---- Slurm queues the job again

    def submit(self, mpi, program, most=3, more=()):
        script = self.write(script_of_docs("scontrol requeue"), {
            "--nodes=4": "--nodes=3", "--cpus-per-task=9": "--cpus-per-task=2", "--mpi=pmix": f"--mpi={mpi}", "-le 3": f"-le {most}",
            " syncrun --nodes 4 -n 8 ": f" {nodes_test.options.syncrun} --nodes 3 -n 1 ", "./program": program})  # fmt: skip
        done = self.hosts.run("n1", ["sbatch", "--parsable", f"--output={self.output}", f"--chdir={self.folder}", *more, script])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def state_of(self, number):
        text = self.hosts.run("n1", ["scontrol", "-o", "show", "job", number]).stdout
        return {name: (re.search(rf"\b{name}=(\S+)", text) or ["", ""])[1] for name in ("JobState", "Restarts", "ExitCode")}

    def await_end(self, number):
        end = time.monotonic() + END_LIMIT_S
        while (state := self.state_of(number))["JobState"] not in ("COMPLETED", "FAILED", "CANCELLED"):
            self.assertLess(time.monotonic(), end, f"{state}: {self.output.read_text()}")
            time.sleep(0.1)
        return state

    def for_each_slurm(self):
        if reason := engines.why_impossible("sbatch", "scontrol", *engines.Srun.tools):
            self.skipTest(reason)
        return "pmix", "pmi2"

    def test_a_requeued_job_goes_on_from_its_checkpoint_with_the_same_losses(self):
        kinds = self.for_each_slurm()
        wanted = self.wanted()
        for mpi in kinds:
            with self.subTest(mpi=mpi):
                self.setUp()
                number = self.submit(mpi, self.digits())
                self.kill_a_worker()
                self.assertEqual(self.await_end(number), {"JobState": "COMPLETED", "Restarts": "1", "ExitCode": "0:0"},
                                 self.output.read_text())  # fmt: skip
                self.check_losses(wanted)

    def test_a_job_that_fails_again_and_again_ends(self):
        self.for_each_slurm()
        number = self.submit("pmix", f"{nodes_test.options.program} fail 2", most=1)
        self.assertEqual(self.await_end(number), {"JobState": "FAILED", "Restarts": "1", "ExitCode": "1:0"})
        self.assertEqual(len(re.findall(r"^syncrun: rank 2 \(n3:cpu0, pid \d+\) failed in call 'fail_on'", self.output.read_text(),
                                        re.MULTILINE)), 2, self.output.read_text())  # fmt: skip

    def test_wrong_arguments_are_not_tried_again(self):
        self.for_each_slurm()
        number = self.submit("pmix", f"{nodes_test.options.program} exit 2")
        self.assertEqual(self.await_end(number), {"JobState": "FAILED", "Restarts": "0", "ExitCode": "2:0"})

    def test_scancel_ends_the_job_for_good(self):
        self.for_each_slurm()
        number = self.submit("pmix", f"{nodes_test.options.program} body 60")
        self.await_output("in the body")
        self.hosts.run("n1", ["scancel", number])
        state = self.await_end(number)
        self.assertEqual((state["JobState"], state["Restarts"]), ("CANCELLED", "0"))
        time.sleep(2)
        self.assertEqual(self.state_of(number)["JobState"], "CANCELLED")
        self.check_nothing_left()

    # ---- Slurm tells the job to stop

    def check_that_it_goes_on(self, number, wanted, pattern=STEP):
        """The job has saved after a step. It was queued again, and then has the losses of a run that nothing interrupts."""
        state = self.await_end(number)
        text = self.output.read_text()
        self.assertEqual((state["JobState"], state["ExitCode"]), ("COMPLETED", "0:0"), text)
        self.assertGreaterEqual(int(state["Restarts"]), 1, text)
        self.assertRegex(text, r"going on after \w+ [1-9]")
        self.assertEqual(pattern.findall(text), list(wanted.items()), text)  # nothing was done again
        self.check_nothing_left()

    def start_training(self, more=()):
        """A training whose steps take long until it starts again. Returns the job and the losses that it must have."""
        command = ["train", self.folder / "none", STEPS, 0]
        job = self.job(ENGINES["openmpi"], command, workers=1)
        self.succeeds(job)
        wanted = dict(STEP.findall(job.text))
        self.assertEqual(len(wanted), STEPS, job.text)
        number = self.submit("pmix", f"{nodes_test.options.program} train {self.folder}/run {STEPS} 0.2", more=more)
        self.await_output(r"step 2 ")
        return number, wanted

    def test_scancel_with_a_signal_lets_the_digits_save_and_go_on(self):
        for mpi in self.for_each_slurm():
            with self.subTest(mpi=mpi):
                self.setUp()
                wanted = self.wanted()
                number = self.submit(mpi, self.digits())
                self.await_output(r"epoch +1/")
                self.hosts.run("n1", ["scancel", "--signal=TERM", number], check=True)
                self.check_that_it_goes_on(number, wanted, LOSS)

    def test_a_cancelled_job_has_saved_and_goes_on_when_the_user_queues_it_again(self):
        """The last lines of its output may be missing: Slurm ends the script, and srun with it."""
        self.for_each_slurm()
        number, wanted = self.start_training()
        self.hosts.run("n1", ["scancel", number], check=True)
        self.assertEqual(self.await_end(number)["JobState"], "CANCELLED", self.output.read_text())
        saved = re.search(r"\bstep\W+(\d+)", (self.folder / "run" / "latest" / "manifest.txt").read_text())
        self.assertGreaterEqual(int(saved[1]), 2)
        self.hosts.run("n1", ["scontrol", "requeue", number], check=True)
        state = self.await_end(number)
        text = self.output.read_text()
        self.assertEqual((state["JobState"], state["Restarts"]), ("COMPLETED", "1"), text)
        self.assertIn(f"going on after step {saved[1]}", text)
        losses = dict(STEP.findall(text))
        self.assertEqual(losses, {step: wanted[step] for step in losses}, text)
        self.assertEqual(max(map(int, losses)), STEPS, text)

    def test_a_preempted_job_saves_and_goes_on(self):
        self.for_each_slurm()
        number, wanted = self.start_training()
        urgent = ["sbatch", "--partition=urgent", "--nodes=3", f"--output={self.folder}/urgent", "--wrap=echo urgent"]
        self.hosts.run("n1", urgent, check=True)
        self.check_that_it_goes_on(number, wanted)
        self.assertEqual((self.folder / "urgent").read_text(), "urgent\n")

    def test_a_job_saves_before_its_time_limit_and_goes_on(self):
        """Slurm counts in minutes, looks at the time every half a minute, and may send the signal a minute too early. So the job
        gets its limit when it has begun to train."""
        self.for_each_slurm()
        number, wanted = self.start_training(more=["--time=10", "--signal=TERM@50"])
        self.hosts.run("n1", ["scontrol", "update", f"JobId={number}", "TimeLimit=1"], check=True)
        self.check_that_it_goes_on(number, wanted)


if __name__ == "__main__":
    nodes_test.main(["Restarts"])

#!/usr/bin/env python3
"""Tests of checkpoints of sessions on several hosts, whose rows the nodes write and read themselves."""

import os
import random
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import nodes_test
from engines import ENGINES
from nodes_test import RUN_LIMIT_S, BreakingHosts

MIB = 1 << 20
LARGE_MIB = 24
# The master sends commands and gets reports, and a beat four times a second. Packets have headers.
MOST_BYTES = MIB // 2


class Checkpoints(BreakingHosts):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp(dir=self.hosts.folder)) / "run"  # all hosts share it
        self.own_folder = Path("/dev/shm/run")  # each host has its own

    # ---- jobs

    def save(self, folder, number, megabytes=1, **kwargs):
        job = self.start("save", folder, number, megabytes, **kwargs)
        job.process.stdin.close()
        self.succeeds(job)

    def check_load(self, folder, number, **kwargs):
        job = self.start("load", folder, **kwargs)
        job.process.stdin.close()
        self.succeeds(job, f"as expected: number {number}")

    def refused(self, pattern, *action, **kwargs):
        job = self.start(*action, **kwargs)
        job.process.stdin.close()
        self.fails(job, pattern)
        return job

    def check_little_traffic(self, job, first, last):
        """Between two lines of the job, no host sends or receives rows."""
        job.await_line(first)
        before = self.network_bytes()
        self.go_on(job)
        job.await_line(last)
        after = self.network_bytes()
        for name in self.hosts.names:
            moved = [there - here for here, there in zip(before[name], after[name], strict=True)]
            print(f"  until '{last}': {name} has received {moved[0]} bytes and sent {moved[1]}", flush=True)
            self.assertLess(max(moved), MOST_BYTES)
        self.go_on(job)

    # ---- tests

    def test_the_nodes_write_and_read_their_rows(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            name = next(name for name in ENGINES if ENGINES[name] is engine)
            job = self.start("save", self.folder, 7, LARGE_MIB, engine=name)
            self.check_little_traffic(job, "ready to save", "^saved")
            self.succeeds(job)
            latest = self.folder / "latest"
            text = (latest / "manifest.txt").read_text()
            self.assertRegex(text, r"^syncrun checkpoint 2\nid [0-9a-f]{32}\narray params replicated\narray rows scattered\n"
                             r"part \d+ n1\npart \d+ n2\npart \d+ n3\narray few scattered\narray flags")  # fmt: skip
            files = {file.name for file in latest.iterdir()}
            self.assertLessEqual({"params.npy", "rows@0.npy", "rows@1.npy", "rows@2.npy", "few.npy", "id.txt", "weights@2.npy"}, files)
            for part in range(3):
                self.assertGreater((latest / f"rows@{part}.npy").stat().st_size, (LARGE_MIB - 1) * MIB // 3)
            job = self.start("load", self.folder, engine=name)
            self.check_little_traffic(job, "ready to load", "^loaded")
            self.succeeds(job, "as expected: number 7")

    def save_replicated(self, folder, number, *words):
        """The names of the files, and how long both saves took."""
        job = self.start("save-replicated", folder, number, 4, *words)
        self.check_little_traffic(job, "ready to save", "^saved in")
        for _ in range(2):  # the second save
            self.go_on(job)
        self.succeeds(job)
        took = [float(text) for text in re.findall("saved in (.*) s", job.text)]
        print(f"  {folder} {words}: saves took {took} s", flush=True)
        host = self.hosts.run("n1", ["ls", f"{folder}/latest/"], check=True)
        return set(host.stdout.split()), took

    def test_all_nodes_write_parts_of_replicated_variables(self):
        parts = {f"weights@{part}.npy" for part in range(3)}
        files, _ = self.save_replicated(self.folder, 1)
        self.assertEqual(files, {"manifest.txt", "id.txt", "few.npy"} | parts)
        self.assertIn("number 1", self.on_one_node(2, "load-replicated", self.folder, host="n2"))
        self.succeeds(self.start("load-replicated", self.folder), "number 1")
        # It saves rank 0's copy, so other copies that differ are not parts of it.
        files, _ = self.save_replicated(self.folder, 2, "other copies")
        self.assertEqual(files, {"manifest.txt", "weights.npy", "few.npy"})
        self.assertIn("number 2", self.on_one_node(2, "load-replicated", self.folder))
        # Other nodes do not see this folder. The first save waits 3 s for them, and the second one does not wait.
        for _ in range(3):  # on a busy machine, a save may take seconds
            files, (first, second) = self.save_replicated(self.own_folder, 3)
            self.assertEqual(files, {"manifest.txt", "weights.npy", "few.npy"})
            if second < first - 1:
                break
        self.assertLess(second, first - 1)
        self.succeeds(self.start("load-replicated", self.own_folder), "number 3")
        # Nor do they see a copy of one that all nodes have written.
        self.save_replicated(self.folder, 4)
        self.hosts.run("n1", ["sh", "-c", f"rm -r {self.own_folder}; cp -a {self.folder} {self.own_folder}"], check=True)
        job = self.start("load-replicated", self.own_folder)
        self.succeeds(job, "number 4")

    def test_it_loads_on_another_number_of_nodes_and_ranks(self):
        self.save(self.folder, 3)
        self.check_load(self.folder, 3, nodes=2, workers=1)
        self.check_load(self.folder, 3, nodes=3, workers=3)
        for ranks in (1, 4):
            self.assertIn("as expected: number 3", self.on_one_node(ranks, "load", self.folder, host="n2"))
        self.save(self.folder, 4, nodes=2, workers=3)
        self.check_load(self.folder, 4)

    def test_one_node_saves_as_before_and_several_load_that(self):
        self.on_one_node(3, "save", self.folder, 5, 1)
        text = (self.folder / "latest" / "manifest.txt").read_text()
        self.assertTrue(text.startswith("syncrun checkpoint 1\narray params replicated\narray rows scattered\narray few"), text)
        self.assertFalse([file for file in (self.folder / "latest").iterdir() if "@" in file.name or file.name == "id.txt"])
        self.check_load(self.folder, 5)
        # The other nodes do not have to see files that the first node has written.
        self.hosts.run("n1", ["cp", "-a", self.folder, self.own_folder], check=True)
        self.check_load(self.own_folder, 5)

    def test_a_folder_that_is_not_shared_is_named_and_nothing_changes(self):
        for number, host in enumerate(("n1", "n2")):
            self.on_one_node(2, "save", self.own_folder, number, 1, host=host)
        self.refused(r"rank [2345] \(n[23]:cpu[01], pid \d+\) failed in call 'save of rows' .*this node cannot see "
                     r"/dev/shm/run/.syncrun-writing-2-[^/]*/id.txt, which the first node has written: .*No such file or directory. "
                     r"Use a folder that all nodes share", "save", self.own_folder, 9, 1)  # fmt: skip
        for number, host in enumerate(("n1", "n2")):
            self.assertIn(f"as expected: number {number}", self.on_one_node(2, "load", self.own_folder, host=host))
            left = self.hosts.run(host, ["ls", "-A", self.own_folder]).stdout.split()
            self.assertEqual(sorted(left), [".syncrun-save-1", "latest"])

    def test_parts_that_a_node_does_not_see_are_named(self):
        self.save(self.folder, 6)
        self.hosts.run("n1", ["cp", "-a", self.folder, self.own_folder], check=True)
        self.refused(r"rank [2345] \(n[23]:cpu[01], pid \d+\) failed in call 'load of params' .*this node cannot see "
                     r"/dev/shm/run/.syncrun-save-1/id.txt", "load", self.own_folder)  # fmt: skip
        # Another folder at the same path.
        self.save(self.folder, 8)
        for host in ("n2", "n3"):
            self.hosts.run(host, ["sh", "-c", f"cp -a {self.folder} {self.own_folder}; cd {self.own_folder}; mv .syn* .syncrun-save-1"], check=True)
        self.refused("cannot see .*the folder at this path is another one", "load", self.own_folder)
        # A part is missing, or too short.
        part = self.folder / "latest" / "rows@1.npy"
        whole = part.read_bytes()
        part.write_bytes(whole[:-4])
        self.refused(r"is damaged: .*rows@1.npy: expected \d+ bytes of elements.*Node n2 has written rows@1.npy", "load", self.folder)
        part.unlink()
        self.refused(r"rows@1.npy: No such file or directory. Node n2 has written rows@1.npy; .* share this folder", "load", self.folder)
        shutil.copy(self.folder / "latest" / "rows@0.npy", part)
        (part.parent / "manifest.txt").write_text((part.parent / "manifest.txt").read_text().replace(" n2\n", "1 n2\n", 1))
        self.refused(r"is damaged: .*rows@1.npy: expected float32 of shape \[\d+, 3\], found float32", "load", self.folder)

    def test_a_load_gets_the_checkpoint_that_it_has_opened(self):
        self.save(self.folder, 1)
        job = self.start("load", self.folder)
        job.await_line("ready to load")
        for number in (2, 3):
            # The other job is on one node, so the folder has files of both kinds of jobs.
            self.on_one_node(2, "save", self.folder, number, 1, host="n2")
        self.go_on(job)
        job.await_line("^loaded")
        self.go_on(job)
        self.succeeds(job, "as expected: number 1")
        self.save(self.folder, 4)
        self.check_load(self.folder, 4)
        self.assertEqual(len(list(self.folder.iterdir())), 2, "what the load has kept is gone")

    def test_a_disk_that_is_full_on_one_node_leaves_the_old_one(self):
        self.save(self.folder, 1)
        self.refused(r"rank 5 \(n3:cpu1, pid \d+\) failed in call 'save of rows' .*cannot write .*rows@2.npy: File too large",
                     "save-limited", self.folder, 2, LARGE_MIB)  # fmt: skip
        self.check_load(self.folder, 1)
        self.assertEqual(sorted(file.name for file in self.folder.iterdir()), [".syncrun-save-1", "latest"])

    def check_fault_while_saving(self, host, fault, pattern, but=(), engine="openmpi"):
        """A worker of n2 does not write its rows, so the save cannot end. Then the fault happens."""
        self.save(self.folder, 1)
        job = self.start("save", self.folder, 2, LARGE_MIB, engine=engine)
        job.await_line("ready to save")
        stopped = self.worker_of("n2")
        os.kill(stopped, signal.SIGSTOP)
        self.go_on(job)
        end = time.monotonic() + RUN_LIMIT_S
        while not list(self.folder.glob(".syncrun-writing-2-*/rows@2.npy")):
            self.assertLess(time.monotonic(), end, f"n3 does not write: {job.text}")
            time.sleep(0.01)
        self.assertIsNone(job.time_of("^saved"))
        fault(host)
        job.await_line(pattern)
        self.assertNotEqual(job.finish(), 0, job.text)
        self.assertIsNone(job.time_of("^saved"))
        self.check_nothing_left(but)
        self.assertIn("as expected: number 1", self.on_one_node(2, "load", self.folder, host="n1" if host != "n1" else "n2"))

    def kill_agent(self, host):
        os.kill(self.agent_of(host), signal.SIGKILL)

    def kill_worker(self, host):
        os.kill(self.worker_of(host), signal.SIGKILL)

    def test_a_host_killed_while_saving_leaves_the_old_one(self):
        self.check_fault_while_saving("n3", self.hosts.kill_host, r"node 2 \(n3\) is silent|lost communication", but=("n3",),
                                      engine="talkative")  # fmt: skip
        self.save(self.folder, 3, nodes=2)
        self.check_load(self.folder, 3, nodes=2)

    def test_a_process_killed_while_saving_leaves_the_old_one(self):
        for host, kill, pattern in (("n3", self.kill_agent, r"node 2 \(n3\) is silent for 3\.0 s"),
                                    ("n2", self.kill_worker, r"rank 3 \(n2:cpu1, pid \d+\) was lost.*SIGKILL"),
                                    ("n1", self.kill_agent, r"the master \(pid \d+\) was killed by SIGKILL")):  # fmt: skip
            with self.subTest(host=host):
                self.folder = Path(tempfile.mkdtemp(dir=self.hosts.folder)) / "run"
                self.check_fault_while_saving(host, kill, pattern)
                self.save(self.folder, 3)  # removes what the last save has left
                self.check_load(self.folder, 3)
                self.assertEqual(len(list(self.folder.iterdir())), 2)

    def test_a_kill_at_any_moment_leaves_a_whole_one(self):
        """Each save has a number, and all of its arrays contain it."""
        random.seed(1)
        for kill, host in (3 * ((self.kill_agent, "n1"), (self.kill_agent, "n3"), (self.kill_worker, "n2"))):
            job = self.start("save-again", self.folder, 2)
            job.process.stdin.close()
            job.await_line("^saved")
            time.sleep(random.uniform(0, 0.5))
            kill(host)
            self.fails(job)
            saved = len(re.findall("^saved", job.text, re.MULTILINE))
            found = int(re.search(r"as expected: number (\d+)", self.on_one_node(2, "load", self.folder, host="n2"))[1])
            print(f"  {kill.__name__} on {host}: {saved} saves have ended, found number {found}", flush=True)
            # A save may have replaced the link, and not have said so yet.
            self.assertIn(found, (saved, saved + 1))

    def test_a_node_that_does_not_write_is_named_at_the_deadline(self):
        self.save(self.folder, 1)
        job = self.start("save", self.folder, 2, 1, more=["--timeout", "6"])
        job.await_line("ready to save")
        os.kill(self.worker_of("n2"), signal.SIGSTOP)
        self.go_on(job)
        job.await_line(r"call 'save of rows'.*6000 ms", 40)
        self.fails(job, r"rank 3 \(n2:cpu1, pid \d+\) is in phase idle, stopped by SIGSTOP")
        self.check_load(self.folder, 1)
        self.assertEqual(sorted(file.name for file in self.folder.iterdir()), [".syncrun-save-1", "latest"])


if __name__ == "__main__":
    nodes_test.main(("Checkpoints",))

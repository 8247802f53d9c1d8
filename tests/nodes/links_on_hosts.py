"""Tests of the connections between ranks that lead their nodes (a part of the groups Collectives and Faults of nodes_test.py)."""

import os
import re
import time
from pathlib import Path

from engines import ENGINES


def connections_of(pid):
    """The TCP connections of a process: remote address, and local and remote port."""
    files = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            files.add(os.readlink(entry))
        except OSError:
            pass
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" not in files or fields[3] != "01":  # established
            continue
        (_, local), (address, remote) = fields[1].split(":"), fields[2].split(":")
        found.add((".".join(map(str, reversed(bytes.fromhex(address)))), int(local, 16), int(remote, 16)))
    return found


def links_of(worker, agent):
    """The local ports of a worker's connections to other hosts, by address. Workers inherit those of Open MPI from the agent."""
    return {address: local for address, local, _ in connections_of(worker) - connections_of(agent)}


class ValuesOverLinks:
    """tests/worker/comm compares the results with and without connections."""

    def test_ranks_that_cannot_connect_warn_once_and_go_on(self):
        for name, warns in (("off", False), ("lo", True), ("no_such_card", True)):
            with self.subTest(links=name):
                job = self.job(ENGINES["openmpi"], ["reduce", 1], workers=1, before=["env", f"SYNCRUN_NODE_LINKS={name}"])
                self.succeeds(job)
                warnings = re.findall("So collectives between hosts pass through the master and the agents", job.text)
                self.assertEqual(len(warnings), int(warns), job.text)

    def test_each_rank_has_a_connection_to_those_of_all_other_hosts(self):
        job = self.job(ENGINES["openmpi"], ["reduce", 600], workers=1)
        job.await_line("in the collectives")
        for number, name in enumerate(self.hosts.names, 1):
            agent, leader = self.hosts.pids(name, self.options.program)
            others = {f"10.77.0.{i}" for i in (1, 2, 3) if i != number}
            self.assertEqual(set(links_of(leader, agent)), others)
        job.kill()


class BreakingLinks:
    def test_a_connection_of_two_ranks_that_is_cut_is_named(self):
        """The agents hear of each other. Only the packets of the connection are lost."""
        job = self.job(ENGINES["openmpi"], ["reduce", 600], workers=1)
        job.await_line("in the collectives")
        time.sleep(0.3)
        port = links_of(self.hosts.pids("n2", self.options.program)[-1], self.agent_of("n2"))["10.77.0.3"]
        self.hosts.disturb("n2", to="n3", port=port)
        self.check_verdict(job, time.monotonic(),
                           r"the connection between rank [12] \(n[23]\) and rank [12] \(n[23]\) is broken", 8)

    def test_a_killed_rank_is_named_although_its_connections_end_first(self):
        for name, rank in (("n1", 0), ("n3", 2)):
            with self.subTest(host=name):
                job = self.job(ENGINES["openmpi"], ["reduce", 600], workers=1)
                job.await_line("in the collectives")
                time.sleep(0.3)
                os.kill(self.hosts.pids(name, self.options.program)[-1], 9)
                self.check_verdict(job, time.monotonic(), rf"rank {rank} \({name}:cpu0.*was lost.*SIGKILL", 1)

    def test_ranks_connect_anew_after_one_was_replaced(self):
        job = self.job(ENGINES["openmpi"], ["respawn-go-on", 20], workers=1)
        job.await_line("going on")
        time.sleep(0.3)
        os.kill(self.hosts.pids("n2", self.options.program)[-1], 9)
        job.await_line(r"rank 1 .* is new$")
        end = time.monotonic() + 10
        newest = self.hosts.pids("n2", self.options.program)[-1]
        while set(links_of(newest, self.agent_of("n2"))) != {"10.77.0.1", "10.77.0.3"}:
            self.assertLess(time.monotonic(), end, job.text)
            time.sleep(0.05)
        self.succeeds(job, "as expected")

#!/usr/bin/env python3
"""Tests of arrays of sessions on several hosts: which rows travel, and files of which each host has its own."""

import struct
import tempfile
from pathlib import Path

import nodes_test
from nodes_test import OnHosts

MIB = 1 << 20
DATA_BYTES = 30 * MIB  # of the action "own-rows"
# Commands, indices, reports, and a beat four times a second. Packets have headers.
MOST_BYTES = MIB // 2


COLUMNS = 4096  # so that the rows of a file are more than MOST_BYTES


def npy(rows, columns, first, descr="<f8"):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}".ljust(117).encode()
    values = [float(row if column == 0 else column) for row in range(first, first + rows) for column in range(columns)]
    code = {"<f8": "d", "<f4": "f"}[descr]
    return b"\x93NUMPY\x01\x00\x76\x00" + header + b"\n" + struct.pack(f"<{len(values)}{code}", *values)


class Data(OnHosts):
    is_patient = True

    def received_until(self, job, line):
        before = self.network_bytes()
        self.go_on(job)
        job.await_line(line)
        after = self.network_bytes()
        received = {name: after[name][0] - before[name][0] for name in self.hosts.names}
        print(f"  until '{line}': received {received}", flush=True)
        return received

    def test_a_row_travels_to_the_nodes_that_read_it_and_once(self):
        for engine, more in (("openmpi", ()), ("mpich", ()), ("openmpi", ("--tree-from", "2"))):
            job = self.start("own-rows", engine=engine, more=more)
            job.await_line("ready to read")
            received = self.received_until(job, "^read$")
            for host in ("n2", "n3"):
                self.assertGreater(received[host], DATA_BYTES // 3)
                self.assertLess(received[host], 1.05 * DATA_BYTES // 3 + MOST_BYTES)
            self.assertLess(max(self.received_until(job, "^read again").values()), MOST_BYTES)
            received = self.received_until(job, "^read what has changed")
            self.assertGreater(received["n3"], 64 << 10)
            self.assertLess(max(received.values()), MOST_BYTES)
            self.go_on(job)
            self.succeeds(job)

    # ---- each host has its own files, in /dev/shm

    def put(self, number, contents, name=None):
        host = self.hosts.names[number]
        source = Path(tempfile.mkdtemp(dir=self.hosts.folder)) / "x"
        source.write_bytes(contents)
        self.hosts.run(host, ["mkdir", "-p", "/dev/shm/own"], check=True)
        self.hosts.run(host, ["cp", source, f"/dev/shm/own/{name or f'x-{number}.npy'}"], check=True)

    def put_all(self, rows):
        for number, count in enumerate(rows):
            self.put(number, npy(count, COLUMNS, sum(rows[:number])))
            self.put(number, npy(rows[-1 - number], COLUMNS, 0), f"y-{number}.npy")  # as many rows, but on other nodes

    def test_each_node_reads_its_own_file_as_a_part_of_one_array(self):
        for engine, rows, more in (("openmpi", (7, 40, 12), ()), ("mpich", (9, 1, 30), ("--tree-from", "2"))):
            self.put_all(rows)
            job = self.start("files", "/dev/shm/own", *rows, engine=engine, more=more)
            job.await_line("ready to read")
            self.assertLess(max(self.received_until(job, "^read$").values()), MOST_BYTES)
            self.go_on(job)
            self.succeeds(job, "as expected")
        self.put_all((11,))
        self.assertEqual(self.on_one_node(2, "files", "/dev/shm/own", 11, lines="\n\n"), "")

    def test_a_file_that_does_not_fit_is_named_with_its_node(self):
        self.put_all((7, 40, 12))
        map_parts = ("map-parts", "/dev/shm/own")
        self.put(1, npy(40, 4, 7))
        self.fails(self.start(*map_parts), r"/dev/shm/own/x-1.npy on node 1 \(n2\) has shape \[40, 4\], and /dev/shm/own/x-0.npy on "
                                           r"node 0 \(n1\) has shape \[7, 4096\]")  # fmt: skip
        self.put(1, npy(40, COLUMNS, 7))
        self.put(2, npy(12, COLUMNS, 47, "<f4"))
        self.fails(self.start(*map_parts), r"rank 4 \(n3:cpu0, pid \d+\) failed in call 'map of .*/dev/shm/own/x-2.npy.*float32")
        self.hosts.run("n3", ["rm", "/dev/shm/own/x-2.npy"], check=True)
        self.fails(self.start(*map_parts), r"rank 4 \(n3:cpu0, pid \d+\) failed in call 'map of .*/dev/shm/own/x-2.npy.*No such file")
        self.hosts.run("n1", ["rm", "/dev/shm/own/x-0.npy"], check=True)
        self.fails(self.start(*map_parts), r"/dev/shm/own/x-0.npy.*No such file")


if __name__ == "__main__":
    nodes_test.main(("Data",))

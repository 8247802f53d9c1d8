#!/usr/bin/env python3
"""Writes and checks the tables of docs/reliability.md.

They show the results of the tests that make workers, and the parts of a job on several nodes, fail at every phase.

usage: reliability.py write DOCUMENT RESULTS.json...   writes the results of the tests into the tables
       reliability.py check DOCUMENT BINARY...         fails if a test of a BINARY has no cell, or a cell is empty

BINARY --gtest_output=json:RESULTS.json writes RESULTS.json, and so does tests/nodes/matrix.py --results RESULTS.json. It is
one of the BINARYs. A table is between <!-- table: NAME --> and
<!-- /table -->. A test records its cell with the properties table, row, column ("*" for the whole row), outcome and
time_us.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

COLUMNS = {
    "kill": "SIGKILL", "segv": "SIGSEGV", "stop": "SIGSTOP", "exit0": "`_exit(0)`", "exit3": "`_exit(3)`",
    "exception": "exception", "number": "`throw 17`", "loop": "endless loop", "memory": "out of memory",
    "shared": "full shared memory", "term": "SIGTERM", "int": "SIGINT", "int2": "SIGINT twice", "hup": "SIGHUP",
    "terminal": "closed terminal", "silence": "silence", "alone": "without `syncrun`", "syncrun": "under `syncrun`",
}
ROWS = ["spawn", "attach", "device", "dependencies", "communicator", "inputs", "function", "collective", "reduction"]
ROWS += ["idle", "close"]
ROWS += [f"{process}, {when}" for process in ("master", "syncrun") for when in ("idle", "setsid", "call", "start")]
# The titles of the rows, by the names that the tests use for them. The names contain no spaces.
ODD_ROWS = {
    "fork": "fork in a function", "exec": "exec in a function", "stopped": "stopped master, call in flight",
    "closedIdle": "closed descriptors, idle", "closedCall": "closed descriptors, call", "fifoLog": "FIFO as log",
    "fifoProfile": "FIFO as profile", "fifoTrace": "FIFO as trace",
}
ROWS += ODD_ROWS.values()
COLUMNS_OF_ENDS = ["kill", "term", "int", "int2", "hup", "terminal", "exception"]
# The table of nodes has a row for each part and way, and a column for each phase. Cells without a test are empty.
PHASES_OF_NODES = ["start", "idle", "rows", "body", "returned", "collective", "vote", "update", "shared", "outputs"]
PHASES_OF_NODES += ["close"]
ROWS_OF_NODES = [
    f"{part}, {COLUMNS[way]}" for part in ("worker", "agent", "syncrun", "master", "engine", "daemon", "link", "node")
    for way in ("kill", "stop", "term", "silence")
]  # fmt: skip
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


class Cell(NamedTuple):
    table: str
    row: str
    column: str


class Result(NamedTuple):
    outcome: str
    time_us: int


def place(cell: Cell) -> tuple[str, str]:
    """Returns the titles of the row and of the column in which the document shows the cell."""
    if cell.table != "nodes":
        return cell.row, COLUMNS.get(cell.column, cell.column)
    part, _, phase = cell.row.partition(", ")
    return f"{part}, {COLUMNS[cell.column]}", phase


def in_words(time_us: int) -> str:
    if time_us >= 1_000_000:
        return f"{time_us / 1_000_000:.1f} s"
    return f"{time_us / 1000:.0f} ms" if time_us >= 1000 else "< 1 ms"


def results_in(path: Path) -> tuple[dict[Cell, list[Result]], list[str]]:
    """Returns the results that the tests recorded, by cell, and the names of the tests that failed."""
    cells: dict[Cell, list[Result]] = {}
    failed = []
    for suite in json.loads(path.read_text(encoding="utf-8"))["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("failures"):
                failed.append(f"{suite['name']}.{test['name']}")
            if "outcome" in test:
                cell = Cell(test["table"], test["row"], test["column"])
                cells.setdefault(cell, []).append(Result(test["outcome"], int(test.get("time_us", 0))))
    return cells, failed


class Table:
    """A table in Markdown. An outcome with a reason becomes a note below the table."""

    def __init__(self, name: str, cells: dict[Cell, list[Result]]) -> None:
        self.cells = {place(cell): results for cell, results in cells.items() if cell.table == name}
        self.is_sparse = name == "nodes"
        order = [COLUMNS[column] for column in (COLUMNS_OF_ENDS if name == "ends" else COLUMNS)]
        order = PHASES_OF_NODES if name == "nodes" else order
        self.columns = [column for column in order if any(known == column for _, known in self.cells)]
        rows = ROWS_OF_NODES if name == "nodes" else ROWS
        self.rows = [row for row in rows if any(known == row for known, _ in self.cells)]
        self.notes: list[str] = []

    def text_of(self, row: str, column: str) -> str:
        results = self.cells.get((row, column)) or self.cells.get((row, "*"))
        if not results:
            return "" if self.is_sparse else "**missing**"
        texts = []
        for outcome in dict.fromkeys(result.outcome for result in results):
            time_us = max(result.time_us for result in results if result.outcome == outcome)
            short, _, reason = outcome.partition(": ")
            if reason and outcome not in self.notes:
                self.notes.append(outcome)
            short += f" [{self.notes.index(outcome) + 1}]" if reason else ""
            texts.append(f"{short}, {in_words(time_us)}" if time_us else short)
        return "; ".join(texts)

    def markdown(self) -> str:
        lines = ["| | " + " | ".join(self.columns) + " |"]
        lines.append("|---" * (len(self.columns) + 1) + "|")
        for row in self.rows:
            lines.append(f"| {row} | " + " | ".join(self.text_of(row, column) for column in self.columns) + " |")
        lines += [""] + [f"[{number}] {note}  " for number, note in enumerate(self.notes, 1)] if self.notes else []
        return "\n".join(lines) + "\n"


def write(document: Path, paths: list[Path]) -> int:
    cells: dict[Cell, list[Result]] = {}
    for path in paths:
        more, failed = results_in(path)
        if failed:
            print(f"{path}: these tests failed: {', '.join(failed)}", file=sys.stderr)
            return 1
        cells |= more
    tables = {cell.table for cell in cells}

    def replaced(found: re.Match[str]) -> str:
        if found[2] not in tables:
            return found[0]  # there are no results, because the machine does not have these devices
        return found[1] + Table(found[2], cells).markdown() + found[4]

    document.write_text(TABLE.sub(replaced, document.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def cells_of(binary: str) -> set[Cell]:
    """Returns the cells of the tests in the binary, from their names."""
    command = [sys.executable, "-B", binary] if binary.endswith(".py") else [binary]
    listing = subprocess.run([*command, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    cells, suite = set(), ""
    for line in listing.splitlines():
        if not line.startswith(" "):
            suite = line.strip()
            continue
        name = line.split("#")[0].strip().rpartition("/")[2]
        if suite in ("Cpu/Matrix.", "Gpu/GpuMatrix."):
            phase, way, _ = name.split("_")
            cells.add(Cell("cpu" if suite.startswith("Cpu") else "cuda", phase, way))
        elif suite == "Of/Ends.":
            process, when, way = name.split("_")
            cells.add(Cell("ends", f"{process}, {when}", way))
        elif suite == "Of/Nodes.":
            part, phase, way = name.split("_")
            cells.add(Cell("nodes", f"{part}, {phase}", way))
        elif suite == "Of/Odd.":
            row, column = name.split("_")
            cells.add(Cell("odd", ODD_ROWS[row], column))
    return cells


def cells_in(document: Path) -> dict[Cell, str]:
    """Returns the texts of the cells in the document, by the titles of their rows and columns."""
    cells = {}
    for found in TABLE.finditer(document.read_text(encoding="utf-8")):
        rows = [[part.strip() for part in line.strip("|").split("|")] for line in found[3].splitlines() if line[:1] == "|"]
        for row in rows[2:]:
            for title, text in zip(rows[0][1:], row[1:], strict=True):
                if text or found[2] != "nodes":
                    cells[Cell(found[2], row[0], title)] = text
    return cells


def check(document: Path, binaries: list[str]) -> int:
    cells = cells_in(document)
    tables = {cell.table for cell in cells} | {"cpu", "ends", "nodes", "odd"}
    tests = {cell for binary in binaries for cell in cells_of(binary) if cell.table in tables}
    wanted = {Cell(cell.table, *place(cell)) for cell in tests}
    missing = [f"{document}: no cell for {cell}" for cell in sorted(wanted - cells.keys())]
    missing += [f"{document}: {cell} says nothing" for cell, text in cells.items() if text in ("", "**missing**")]
    print("\n".join(missing) if missing else f"{len(cells)} cells, {len(wanted)} of them of tests")
    return 1 if missing or not wanted else 0


def main(arguments: list[str]) -> int:
    if len(arguments) >= 3 and arguments[0] == "write":
        return write(Path(arguments[1]), [Path(path) for path in arguments[2:]])
    if len(arguments) >= 3 and arguments[0] == "check":
        return check(Path(arguments[1]), arguments[2:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

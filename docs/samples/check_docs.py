#!/usr/bin/env python3
"""What the documents show is what compiles and what it prints.

A code block of C++ or CMake stands under a comment that names the file, and the region of it, that it is a copy of; a
block of output under one that names the command it was printed by:

    <!-- sample: tour_first.cpp [all] -->         from // [all] to // [/all]; the whole file without a region
    <!-- run: syncrun -n 3 ./tour_first -->       standard output and error; process ids, ages, native stacks and
                                                  models of CPUs may differ. Without the lines of `syncrun`
                                                  about devices, unless SYNCRUN_QUIET is unset (env -u)

and a block of differences under one that names two files, and maybe which of their differences:

    <!-- diff: demos/a.cpp demos/b.cpp [2-4,7] -->  what becomes of a.cpp in b.cpp, at the second to fourth place and the 7th

usage: check_docs.py ROOT code                    every block is its sample's text, or its difference; every relative link leads
                                                  somewhere; a page with a loop that builds programs builds all
       check_docs.py ROOT outputs FILE BIN [SYNCRUN]
                                                  the blocks of output in FILE, run in folder BIN
       check_docs.py --write ...                  the same, but mends the documents
"""

import difflib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

SAMPLES = "docs/samples"
CHECKED_LANGUAGES = {"cpp", "cmake"}
LIMIT_S = 300  # as for a call in the tests; on a busy machine, the longest sample takes a minute
BLOCK = re.compile(
    r"(?P<marker><!-- (?P<kind>sample|run|diff): (?P<what>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)```", re.DOTALL
)
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


def documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def sample_text(root: Path, what: str) -> str:
    name, _, region = what.partition(" ")
    path = root / SAMPLES / name
    text = (path if path.is_file() else root / name).read_text(encoding="utf-8")
    if not region:
        return text
    label = re.escape(region.strip("[]"))
    found = re.search(rf"^[ ]*(?://|#) \[{label}\]\n(.*?)^[ ]*(?://|#) \[/{label}\]$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{name} has no region {region}")
    inner = re.sub(r"^[ ]*// \[/?\w+\]\n", "", found.group(1), flags=re.MULTILINE)
    return textwrap.dedent(inner).strip("\n") + "\n"


def difference(root: Path, what: str) -> str:
    """The places, from the first to the last one asked for, where two files differ."""
    old, new, *places = what.split()
    lines = [(root / name).read_text(encoding="utf-8").splitlines(keepends=True) for name in (old, new)]
    text = "".join(list(difflib.unified_diff(*lines, n=0))[2:])
    hunks = re.split(r"^@@ .*\n", text, flags=re.MULTILINE)[1:]
    if places:
        ranges = [place.partition("-") for place in places[0].strip("[]").split(",")]
        hunks = [hunk for first, _, last in ranges for hunk in hunks[int(first) - 1 : int(last or first)]]
    if not hunks:
        raise ValueError(f"{old} and {new} do not differ there")
    return "...\n".join(hunks)


def output_of(command: str, folder: Path, syncrun: str) -> str:
    words = [syncrun if word == "syncrun" else word for word in command.split()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SYNCRUN_")}
    environment["SYNCRUN_QUIET"] = "1"
    done = subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=LIMIT_S, text=True,
    )  # fmt: skip
    code = f"(exit code {done.returncode})\n" if done.returncode != 0 else ""
    return done.stdout + code


def comparable(text: str) -> str:
    """Without what differs from run to run and from machine to machine: process ids, ages, stacks, models of CPUs, and
    what a sanitizer says of threads that end while it looks for leaks."""
    text = re.sub(r"^.*==\d+==Unable to get registers from thread.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^    (#\d+ |thread \d+ |\.\.\. and \d+ more|no stack: ).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r", no progress for [\d.]+ s", "", text)
    text = re.sub(r"^(syncrun: \S+ is cpu\d+: ).+$", r"\1MODEL", text, flags=re.MULTILINE)
    return re.sub(r"\bpid \d+", "pid N", text)


class Check:
    def __init__(self, root: Path, write: bool) -> None:
        self.root, self.write, self.wrong = root, write, 0

    def complain(self, document: Path, text: str, position: int, what: str) -> None:
        line = text.count("\n", 0, position) + 1
        print(f"{document.relative_to(self.root)}:{line}: {what}")
        self.wrong += 1

    def blocks(self, document: Path, kind: str, wanted, is_equal) -> None:
        """Compares each block of this kind with what `wanted` says, or puts that in its place."""
        text = document.read_text(encoding="utf-8")

        def mend(match: re.Match) -> str:
            if match["kind"] != kind:
                if kind == "sample" and match["kind"] is None and match["language"] in CHECKED_LANGUAGES:
                    self.complain(document, text, match.start(), "a code block that is no sample's copy")
                return match[0]
            try:
                right = wanted(match["what"])
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                self.complain(document, text, match.start(), str(error))
                return match[0]
            if is_equal(match["body"], right):
                return match[0]
            if not self.write:
                self.complain(document, text, match.start(), f"differs from {match['what']}, which is\n{right}")
            return f"{match['marker']}```{match['language']}\n{right}```"

        mended = BLOCK.sub(mend, text)
        if self.write and mended != text:
            document.write_text(mended, encoding="utf-8")

    def code(self) -> None:
        for document in documents(self.root):
            self.blocks(document, "sample", lambda what: sample_text(self.root, what), str.__eq__)
            self.blocks(document, "diff", lambda what: difference(self.root, what), str.__eq__)
            text = document.read_text(encoding="utf-8")
            prose = re.sub(r"```.*?```", lambda block: re.sub(r"[^\n]", " ", block[0]), text, flags=re.DOTALL)
            for match in LINK.finditer(prose):
                if "://" not in match["target"] and not (document.parent / match["target"]).exists():
                    self.complain(document, text, match.start(), f"a link that leads nowhere: {match['target']}")
            loop = re.search(r"^for name in (.*); do$", text, re.MULTILINE)  # the page's commands that build its programs
            for match in re.finditer(r"<!-- run: [^\n]*\./(\w+)", text) if loop else ():
                if match[1] not in loop[1].split():
                    self.complain(document, text, match.start(), f"the loop on this page does not build {match[1]}")

    def outputs(self, document: Path, folder: Path, syncrun: str) -> None:
        same = lambda shown, printed: comparable(shown) == comparable(printed)  # noqa: E731
        self.blocks(document, "run", lambda what: output_of(what, folder, syncrun), same)


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    words = [word for word in arguments if word != "--write"]
    if len(words) == 2 and words[1] == "code":
        check = Check(Path(words[0]).resolve(), write)
        check.code()
    elif len(words) in (4, 5) and words[1] == "outputs":
        check = Check(Path(words[0]).resolve(), write)
        check.outputs(check.root / words[2], Path(words[3]).resolve(), str(Path([*words, "syncrun"][4]).resolve()))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

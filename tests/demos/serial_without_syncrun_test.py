#!/usr/bin/env python3
"""Checks that the serial twins of the demo contain no Syncrun: they neither include it nor link it.

usage: serial_without_syncrun_test.py ROOT DEMO TWIN:SOURCE...
    DEMO is syncrun-mnist. Both must be found in it, which shows that this script can find them.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# The library's name in the dynamic section, and the namespace in a symbol.
TRACES = (b"libsyncrun", b"N7syncrun")


def includes(root: Path, source: str) -> set[str]:
    """Returns the headers of the project and of Syncrun that a source includes, also through others."""
    seen: set[str] = set()
    waiting = [source]
    while waiting:
        for name in INCLUDE.findall((root / waiting.pop()).read_text(encoding="utf-8")):
            if name not in seen and (name.startswith("syncrun/") or (root / name).is_file()):
                seen.add(name)
                if (root / name).is_file():
                    waiting.append(name)
    return seen


def traces(program: Path) -> list[str]:
    image = program.read_bytes()
    return [trace.decode() for trace in TRACES if trace in image]


def main(root: Path, demo: Path, twins: list[str]) -> int:
    wrong = 0
    if traces(demo) != [trace.decode() for trace in TRACES]:
        print(f"{demo}: expected {TRACES} in it, found {traces(demo)}")
        wrong += 1
    if "syncrun/syncrun.hpp" not in includes(root, "demos/mnist/main.cpp"):
        print("demos/mnist/main.cpp: expected it to include syncrun/syncrun.hpp")
        wrong += 1
    for program, source in (twin.split(":") for twin in twins):
        found = [name for name in sorted(includes(root, source)) if name.startswith("syncrun/")]
        if found:
            print(f"{source}: expected no Syncrun, it includes {', '.join(found)}")
            wrong += 1
        if not (root / source).is_file() or traces(Path(program)):
            print(f"{program}: expected no Syncrun, found {traces(Path(program))}")
            wrong += 1
    return 1 if wrong or not twins else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))

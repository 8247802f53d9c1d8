#!/usr/bin/env python3
"""Lists the files that scripts/lint.sh checks, and their compile commands.

usage: lint_units.py ROOT BUILD OUT [FILE...]

Reads BUILD/compile_commands.json, and writes into OUT:
  compile_commands.json  for clang-tidy
  library.txt            the files that include sources of the library that the build compiles together (SYNCRUN_UNITY)
  together.txt           the same for other sources
  single.txt             the sources that the build compiles one by one
  alone.txt              for each source of the library that a file in library.txt includes, a command that reads it

With FILEs, the lists contain only these, to be checked one by one. Each must be a part of the build. Without FILEs,
they contain all sources that git tracks in FOLDERS. The script names the sources that this build does not compile, for
example those for GPUs without a CUDA compiler, and programs that Syncrun is compared with. It also names the sources
that use LibTorch, which clang-tidy cannot read.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

LIBRARY = ("common", "master", "worker", "libtorch")
FOLDERS = LIBRARY + ("bench", "demos", "tests")
PRECOMPILED = re.compile(r"(-Winvalid-pch )?-include \S*/cmake_pch\.hxx")  # clang cannot read the ones of g++
# In the commands for sources that use LibTorch. Clang 16 cannot read the headers of LibTorch 1.13 in C++20.
TORCH_FOLDER = "/torch/csrc/api/include"
INCLUDE = re.compile(r'^#include "(.*)"$', re.MULTILINE)


def sources_of(entry: dict) -> list[str]:
    """The sources that this command compiles."""
    if "/Unity/unity_" not in entry["file"]:
        return [entry["file"]]
    return INCLUDE.findall(Path(entry["file"]).read_text(encoding="utf-8"))


def tracked(root: Path) -> list[str]:
    names = subprocess.run(["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--", *FOLDERS], cwd=root, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    return [str(root / name) for name in names if name.endswith(".cpp")]


def command_for(entry: dict, file: str) -> str:
    return PRECOMPILED.sub("", entry["command"]).replace(f"-c {entry['file']}", f"-c {file}")


def reading(entry: dict, source: str, build: Path) -> str:
    """A shell command that reads a source with clang, without the warnings that other steps look for."""
    _, options = command_for(entry, source).split(" ", 1)
    options = re.sub(r" -o \S+ -c ", " ", options)
    return f"cd {shlex.quote(str(build))} && clang++-16 -fsyntax-only -w {options}"


def main(root: Path, build: Path, out: Path, names: list[str]) -> int:
    wanted = [str((root / name).resolve()) for name in names] or tracked(root)
    library = tuple(f"{root}/{folder}/" for folder in LIBRARY)
    commands: dict[str, str] = {}  # by the file that clang-tidy checks
    alone = []
    seen = set()
    with_torch = set()
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    for entry in entries:
        if TORCH_FOLDER in entry["command"]:
            with_torch.update(sources_of(entry))
            continue
        for source in sources_of(entry):
            if source in seen or source not in wanted:
                continue
            seen.add(source)
            unit = source if names else entry["file"]
            commands[unit] = command_for(entry, unit)
            if unit != source and source.startswith(library):
                alone.append(reading(entry, source, build))

    unknown = [str(Path(source).relative_to(root)) for source in wanted if source not in seen]
    if unknown and names:
        print(f"error: not part of {build}, or with LibTorch, which clang cannot read: {' '.join(unknown)}", file=sys.stderr)
        return 1
    for name in unknown:
        why = "clang cannot read LibTorch" if str(root / name) in with_torch else "this build does not compile it"
        print(f"left out, since {why}: {name}")
    print(f"{len(seen)} sources")

    (out / "compile_commands.json").write_text(json.dumps(
        [{"directory": str(build), "file": unit, "command": command} for unit, command in commands.items()]), encoding="utf-8")
    single = [unit for unit in commands if "/Unity/" not in unit]
    of_library = tuple(f"{build}/{folder}/" for folder in LIBRARY)
    library_units = [unit for unit in commands if "/Unity/" in unit and unit.startswith(of_library)]
    together = [unit for unit in commands if "/Unity/" in unit and unit not in library_units]
    for kind, lines in (("library", library_units), ("together", together), ("single", single), ("alone", alone)):
        (out / f"{kind}.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(sys.argv[3]), sys.argv[4:]))

#!/usr/bin/env python3
"""House rules, as tests: which folder may include which (the table "Rooms" of the design), and how files look.

usage: house_rules.py ROOT RULE    with RULE one of include_rules, shared_headers, headers, unique_types, seam_headers,
file_length, no_home_paths
Prints each violation as FILE:LINE: what is wrong. Exit code 1 if there is one.
"""

import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

CPP_SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}
HEADER_SUFFIXES = {".hpp", ".cuh"}
SOURCE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
FOLDERS = ["include", "common", "launcher", "worker", "demos", "tests", "bench", "scripts", "cmake", "docs", ".ci"]
MAX_LINES = 600

# Rooms: what the quoted (and <syncrun/...>) includes of a folder may start with.
MAY_INCLUDE = {
    "include": ("syncrun/",),
    "common": ("syncrun/", "common/"),
    "launcher": ("syncrun/", "common/", "launcher/"),
    "worker": ("syncrun/", "common/", "worker/"),
    "demos/common": ("demos/common/",),
    "demos": ("syncrun/", "demos/common/"),  # and a demo's own folder
}
# Where CUDA and NCCL headers may appear; include/ only takes what declares their handle types.
CUDA_ROOMS = {"worker", "demos", "demos/common", "tests", "bench"}
CUDA_HANDLE_HEADERS = {"cuda_runtime_api.h", "driver_types.h", "cublas_v2.h", "cudnn.h", "nccl.h"}
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvml|nvtx|driver_types|thrust/|cub/)")
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# What tests share precompiled (tests/CMakeLists.txt), and by what a file shows that it uses it: a test that forgot to include
# it would compile all the same.
SHARED_HEADERS = (
    (re.compile(r"\b(EXPECT|ASSERT)_THAT\b"), ("gmock/",)),
    (re.compile(r"\b(TEST|TEST_[FP]|GTEST_SKIP)\(|\b(EXPECT|ASSERT)_[A-Z]|(?<!:)\btesting::"), ("gtest/", "gmock/")),
    (re.compile(r"\bsr::|\bsyncrun::(Session|Data|Shared|Error|run)\b"), ("syncrun/",)),
)
# A type that a header defines at the outermost level, where namespaces are not indented.
TYPE = re.compile(r"^(?:class|struct|union) (?:SYNCRUN_EXPORT\w* |alignas\([^)]*\) )?(\w+)(?: final)?(?: :.*|)\s*\{")
# They share the namespace syncrun::detail, and the library.
TYPE_ROOMS = {"include", "common", "launcher", "worker"}
# What templates call in the library is declared in these two headers, and nowhere else.
SEAM_HEADERS = {Path("include/syncrun/detail/master_seam.hpp"), Path("include/syncrun/detail/worker_seam.hpp")}
DETAIL_BEGIN = re.compile(r"^namespace (?:syncrun::)?detail \{")
DETAIL_END = re.compile(r"^\}  // namespace (?:syncrun::)?detail\b")
EXPORTED = re.compile(r"^(?:\[\[noreturn\]\] )?(?:class |struct )?SYNCRUN_EXPORT\b")
NO_CODE = re.compile(r'//.*|"(?:[^"\\]|\\.)*"')
HOME_PATH = re.compile(r"(?<![\w.$}])/(?:home|root|Users)/\w")


class Violation(NamedTuple):
    file: Path
    line: int
    what: str


def files(root: Path, suffixes: set[str]) -> Iterator[Path]:
    """Files of the project, as paths relative to its root."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and (not suffixes or path.suffix in suffixes) and "__pycache__" not in path.parts:
                yield path.relative_to(root)
    if not suffixes:
        yield from sorted(path.relative_to(root) for path in root.glob("*") if path.is_file())


def lines_of(root: Path, file: Path) -> list[str]:
    return (root / file).read_text(encoding="utf-8", errors="replace").splitlines()


def room_of(file: Path) -> str:
    return "demos/common" if file.parts[:2] == ("demos", "common") else file.parts[0]


def wrong_include(root: Path, file: Path, bracket: str, name: str) -> str | None:
    """What is wrong with including `name` in `file`; None if nothing is."""
    room = room_of(file)
    is_ours = bracket == '"' or name.startswith("syncrun/")
    if not is_ours:
        if room == "include":
            if not STANDARD_HEADER.match(name) and name not in CUDA_HANDLE_HEADERS:
                return f"include/ takes the standard library and CUDA or NCCL handle types only, not <{name}>"
        elif CUDA_HEADER.match(name) and room not in CUDA_ROOMS:
            return f"{room}/ never sees CUDA, not <{name}>"
        return None

    base = root / "include" if name.startswith("syncrun/") else root
    if not (base / name).is_file():
        if room in MAY_INCLUDE or not (root / file.parent / name).is_file():
            return f"no file {name!r}: project headers are included by their path from the root"
        return None
    if room not in MAY_INCLUDE:
        return None
    allowed = MAY_INCLUDE[room]
    if room == "demos":
        allowed += (f"{file.parent.as_posix()}/",)
        if name.startswith("syncrun/detail/"):
            return "demos use the public API as a stranger would, not its details"
    if name.startswith(allowed):
        return None
    return f"{room}/ may include {', '.join(allowed)} and never {name!r}"


def include_rules(root: Path) -> Iterator[Violation]:
    for file in files(root, CPP_SUFFIXES):
        for number, line in enumerate(lines_of(root, file), 1):
            found = INCLUDE.match(line)
            wrong = wrong_include(root, file, *found.groups()) if found else None
            if wrong:
                yield Violation(file, number, wrong)


def includes_of(root: Path, file: Path, seen: set[Path]) -> set[str]:
    """The names that `file` and the project headers it includes include; `seen` are those that were asked already."""
    seen.add(file)
    names = {found.group(2) for line in lines_of(root, file) if (found := INCLUDE.match(line))}
    for name in sorted(names):
        for path in (Path(name), file.parent / name):
            if path not in seen and (root / path).is_file():
                names |= includes_of(root, path, seen)
    return names


def shared_headers(root: Path) -> Iterator[Violation]:
    for file in files(root, CPP_SUFFIXES):
        if file.parts[0] != "tests":
            continue
        code = [NO_CODE.sub("", line) for line in lines_of(root, file)]
        names = includes_of(root, file, set())
        for use, prefixes in SHARED_HEADERS:
            used = next((number for number, line in enumerate(code, 1) if use.search(line)), None)
            if used and not any(name.startswith(prefixes) for name in names):
                yield Violation(file, used, f"uses {' or '.join(prefixes)} and does not include it")


def headers(root: Path) -> Iterator[Violation]:
    for file in files(root, HEADER_SUFFIXES):
        written = [line.strip() for line in lines_of(root, file) if line.strip()]
        if "#pragma once" not in written:
            yield Violation(file, 1, "a header says #pragma once")
        opening = [line for line in written if line != "#pragma once"][:1]
        if not opening or not opening[0].startswith("//"):
            yield Violation(file, 1, "a header opens with a short paragraph (a // comment) saying what it is for")


def unique_types(root: Path) -> Iterator[Violation]:
    """Of two types of one name in one library, the linker takes the inline functions of either for both."""
    known: dict[str, Path] = {}
    for file in files(root, HEADER_SUFFIXES):
        if room_of(file) not in TYPE_ROOMS:
            continue
        for number, line in enumerate(lines_of(root, file), 1):
            found = TYPE.match(line)
            if not found:
                continue
            first = known.setdefault(found.group(1), file)
            if first != file:
                yield Violation(file, number, f"{first} has a type {found.group(1)} as well: give one another name")


def seam_headers(root: Path) -> Iterator[Violation]:
    """The untyped entry points: in the two headers each has a docstring; in the others there are typed templates only."""
    for file in files(root, HEADER_SUFFIXES):
        if room_of(file) != "include":
            continue
        is_detail = False
        before = ""
        for number, line in enumerate(lines_of(root, file), 1):
            is_detail = (is_detail or DETAIL_BEGIN.match(line) is not None) and not DETAIL_END.match(line)
            if is_detail and EXPORTED.match(line):
                if file not in SEAM_HEADERS:
                    yield Violation(file, number, "an untyped entry point is declared in master_seam.hpp or worker_seam.hpp")
                elif not before.startswith("///"):
                    yield Violation(file, number, "an entry point of the seam has a docstring (a /// comment)")
            before = line


def file_length(root: Path) -> Iterator[Violation]:
    for file in files(root, SOURCE_SUFFIXES):
        count = len(lines_of(root, file))
        if count > MAX_LINES:
            yield Violation(file, count, f"{count} lines: over {MAX_LINES} is two files")


def no_home_paths(root: Path) -> Iterator[Violation]:
    for file in files(root, set()):
        if b"\0" in (root / file).read_bytes()[:8192]:
            continue
        for number, line in enumerate(lines_of(root, file), 1):
            if HOME_PATH.search(line):
                yield Violation(file, number, "a path of somebody's home: it exists on one machine only")


RULES = {
    rule.__name__: rule
    for rule in (include_rules, shared_headers, headers, unique_types, seam_headers, file_length, no_home_paths)
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[1] not in RULES:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(arguments[0])
    violations = list(RULES[arguments[1]](root))
    for violation in violations:
        print(f"{violation.file}:{violation.line}: {violation.what}")
    seen = sum(1 for _ in files(root, CPP_SUFFIXES))
    if seen == 0:
        print(f"no C++ files under {root}: nothing was checked")
    return 1 if violations or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

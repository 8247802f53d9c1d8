#!/usr/bin/env python3
"""Checks the house rules: which folders may include which (see the table of folders in docs/design.md), and the form of
files.

usage: house_rules.py ROOT RULE    with RULE one of include_rules, floors, shared_headers, headers, namespaces, interface_headers,
raw_handles, file_length, no_home_paths, plain_phrases, page_columns, paths_in_pages, locale_free, checked_locks
Prints each violation as FILE:LINE: what is wrong. Exit code 1 if there is one.
"""

import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

sys.dont_write_bytecode = True
from plain_phrases import found_phrases  # noqa: E402

CPP_SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}
HEADER_SUFFIXES = {".hpp", ".cuh"}
SOURCE_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
PROSE_SUFFIXES = SOURCE_SUFFIXES | {".md", ".txt"}
# They have the phrases on purpose.
PHRASE_LISTS = {Path(f"tests/project/{name}.py") for name in ("plain_phrases", "commit_subjects_test", "house_rules_test")}
FOLDERS = ["include", "common", "master", "worker", "libtorch", "demos", "tests", "bench", "scripts", "cmake", "docs", ".ci"]
MAX_COLUMNS = 120
MAX_LINES = 600

# Rooms, and how the includes of each may begin. Only includes in quotes and <syncrun/...> count.
MAY_INCLUDE = {
    "include": ("syncrun/",),
    "include/syncrun/torch": ("syncrun/",),
    "common": ("syncrun/", "common/"),
    "master": ("syncrun/", "common/", "master/"),
    "worker": ("syncrun/", "common/", "worker/"),
    "libtorch": ("syncrun/", "common/", "libtorch/"),
    "libtorch/cuda": ("syncrun/", "common/", "libtorch/"),
    "demos/common": ("demos/common/",),
    "demos/resnet/network": ("demos/common/", "demos/resnet/network/"),
    "demos/gpt": ("syncrun/", "demos/common/", "demos/gpt/"),
    "demos": ("syncrun/", "demos/common/"),  # and the demo's own folder
}
# The folders of the library from bottom to top. A file includes only files of its own folder and of folders below it.
FLOORS = (
    "common", "common/text", "common/os", "common/arrays", "common/protocol", "common/code",
    "master/checkpoint", "master/records", "master/devices", "master/process", "master/wrappers", "master/settings",
    "master/helper_processes", "master/profile", "master/metrics", "master/pool", "master/queues", "master/calls",
    "master/failures", "master/data", "master/values", "master/nodes", "master/nodes/mpi", "master/doctor",
    "master/doctor/probe", "master/inspect", "master/report", "master/terminals", "master/command_line", "master/variables",
    "master/dispatch", "master/session", "master/api",
    "worker/process", "worker/helper_processes", "worker/comm", "worker/devices", "worker/devices/cpu", "worker/devices/cuda",
    "worker/call", "worker/loop",
    "libtorch", "libtorch/cuda",
)
# Rooms that are within the folder of another room.
INNER_ROOMS = ("include/syncrun/torch", "libtorch/cuda", "demos/common", "demos/resnet/network", "demos/gpt")
# The rooms that may include the headers of LibTorch.
TORCH_ROOMS = {"include/syncrun/torch", "libtorch", "libtorch/cuda", "demos/gpt", "tests", "docs"}
TORCH_HEADER = re.compile(r"^(torch|ATen|c10)/")
# The rooms that may include the headers of CUDA and NCCL. include/ may only include those that declare their handle
# types.
CUDA_ROOMS = {"worker", "libtorch/cuda", "demos", "demos/common", "demos/gpt", "demos/resnet/network", "tests", "bench"}
CUDA_HANDLE_HEADERS = {"cuda_runtime_api.h", "driver_types.h", "cublas_v2.h", "cudnn.h", "nccl.h"}
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvml|nvtx|driver_types|thrust/|cub/)")
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
# Programs would take longer to compile with these.
HEAVY_HEADERS = {"algorithm", "functional", "fstream", "future", "iostream", "map", "regex", "sstream", "thread",
                 "unordered_map"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# The precompiled headers that tests share (tests/CMakeLists.txt). The pattern shows that a file uses such a header. A
# test that does not include it would compile all the same.
SHARED_HEADERS = (
    (re.compile(r"\b(EXPECT|ASSERT)_THAT\b"), ("gmock/",)),
    (re.compile(r"\b(TEST|TEST_[FP]|GTEST_SKIP)\(|\b(EXPECT|ASSERT)_[A-Z]|(?<!:)\btesting::"), ("gtest/", "gmock/")),
    (re.compile(r"\bsr::|\bsyncrun::(Session|Data|Shared|Error|run)\b"), ("syncrun/",)),
)
# A namespace that a file opens, and a type of another room that it declares.
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{")
DECLARED_TYPE = re.compile(r"^(?:class|struct|enum class) \w+(?: : [\w:]+)?;$")
ENVIRONMENT = "syncrun::detail::environment"  # the names of variables, for all rooms
# The rooms of the library.
TYPE_ROOMS = {"include", "include/syncrun/torch", "common", "master", "worker", "libtorch", "libtorch/cuda"}
# The library functions that templates call are declared in these headers, and nowhere else.
SEAM_HEADERS = {Path("include/syncrun/detail/master_interface.hpp"), Path("include/syncrun/detail/worker_interface.hpp"),
                Path("include/syncrun/torch/loader_interface.hpp"), Path("include/syncrun/torch/torch_interface.hpp"),
                Path("include/syncrun/torch/units_interface.hpp")}
DETAIL_BEGIN = re.compile(r"^namespace (?:syncrun::)?detail \{")
DETAIL_END = re.compile(r"^\}  // namespace (?:syncrun::)?detail\b")
EXPORTED = re.compile(r"^(?:\[\[noreturn\]\] )?(?:class |struct )?SYNCRUN_EXPORT\b")
# Handles of CUDA and its libraries: the name of the handle, or a pointer to the type that it points to.
HANDLE = re.compile(
    r"\b(?:cuda(?:Stream|Event|Graph|GraphExec)_t|CU(?:stream|event|graph|graphExec)|cublas(?:Lt)?Handle_t|cudnnHandle_t"
    r"|nccl(?:Comm|Window)_t)\b"
    r"|\b(?:CU(?:stream|event|graph|graphExec)_st|cublas(?:Lt)?Context|cudnnContext|ncclComm|ncclWindow_vidmem)"
    r"\s*(?:const\s*)?[*]"
)
# Files with such a name contain the owners of handles, and views of handles that others own.
OWNERS = re.compile(r"(?:^|_)owners$")
# Code that declares no member: comments, strings, characters and directives.
NO_MEMBER = re.compile(
    r'//[^\n]*|/[*].*?[*]/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"'
    r"|(?<!\w)'(?:[^'\\\n]|\\.)+'|^[ \t]*#(?:[^\n\\]|\\.)*",
    re.DOTALL | re.MULTILINE,
)
TYPE_HEAD = re.compile(r"(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:class|struct|union)\b", re.DOTALL)
BEFORE_MEMBER = re.compile(r"\s+|(?:public|private|protected)\s*:|\[\[.*?\]\]|(?:alignas|__align__)\s*\([^)]*\)")
# A type, an operator or a function, or the rest of one after a brace.
NO_DATA = re.compile(r"(?:using|typedef|friend|template|class|struct|union|enum)\b|.*(?:\boperator\b|[()])|[^\w:]", re.DOTALL)
# Members that the library defines and a template may call. In an exported class, these are all members that the header
# only declares. In another class, these are the members that are exported themselves.
CLASS = re.compile(r"^(?:class|struct) (?P<exported>SYNCRUN_EXPORT )?(?!.*;)\w+")
ACCESS = re.compile(r"^\s*(public|protected|private):\s*$")
DECLARED_FUNCTION = re.compile(r"[\w~]\(.*\)(?: const)?(?: noexcept)?(?: override)?$")
NOT_A_MEMBER_FUNCTION = re.compile(r"^(?:friend|using|typedef|static_assert|template)\b|\(\*")
UNTYPED = re.compile(r"\bvoid\*")
NO_CODE = re.compile(r'//.*|"(?:[^"\\]|\\.)*"')
# What reads or writes numbers with the decimal point of the program's locale. common/text/numbers.hpp does without it.
LOCALE_NUMBER = re.compile(
    r"\b(?:strto(?:d|f|ld)|sto(?:d|f|ld)|atof|setprecision|o(?:string)?stringstream|ofstream|setlocale)\b"
    r"|%[-+ #0-9.*]*[lL]?[aefgAEFG](?![a-zA-Z])"
)
# Clang checks the mutexes and locks of this header only.
MUTEX_HEADER = Path("common/os/mutex.hpp")
UNCHECKED_LOCK = re.compile(r"\bstd::(?:\w*mutex|lock_guard|unique_lock|scoped_lock|shared_lock)\b")
MUTEX = re.compile(r"^\s*(?:mutable )?(?:[\w:]+::)?(?:Recursive)?Mutex (\w+);")
# What pages have in backquotes: a path from the root, which arguments may follow, or the name of a source.
PATH_IN_PAGE = re.compile(
    rf"`(?P<path>(?:packaging|{'|'.join(map(re.escape, FOLDERS))})/[^`\s]*)[^`]*`"
    r"|`(?:[\w./-]+/)?(?P<source>[\w.-]+\.(?:[ch]pp|cuh?|py|sh|cmake))`"
)
PLACEHOLDER = re.compile(r"<|\.\.\.|(?:^|/)(?:my_|[A-Z_]+(?:/|$))")
BRACES = re.compile(r"\{([^{}]*)\}")
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
    return next((room for room in INNER_ROOMS if file.is_relative_to(room)), file.parts[0])


def wrong_include(root: Path, file: Path, bracket: str, name: str) -> str | None:
    """Returns what is wrong with including `name` in `file`, or None if nothing is."""
    room = room_of(file)
    is_ours = bracket == '"' or name.startswith("syncrun/")
    if not is_ours:
        if TORCH_HEADER.match(name):
            return None if room in TORCH_ROOMS else f"{room}/ never sees LibTorch, not <{name}>"
        if room in ("include", "include/syncrun/torch"):
            if not STANDARD_HEADER.match(name) and name not in CUDA_HANDLE_HEADERS:
                return f"include/ takes the standard library and CUDA or NCCL handle types only, not <{name}>"
            if name in HEAVY_HEADERS and room == "include":  # those of LibTorch include them anyway
                return f"include/ does without <{name}>, which takes long to compile"
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
        allowed += ("/".join(file.parts[:2]) + "/",)
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


def floors(root: Path) -> Iterator[Violation]:
    """No folder of the library includes one that stands above it. So there is no cycle of folders."""
    for file in files(root, CPP_SUFFIXES):
        folder = file.parent.as_posix()
        if file.parts[0] not in ("common", "master", "worker", "libtorch"):
            continue
        if folder not in FLOORS:
            yield Violation(file, 1, f"{folder}/ is not in FLOORS (tests/project/house_rules.py), the list of folders from bottom to top")
            continue
        for number, line in enumerate(lines_of(root, file), 1):
            found = INCLUDE.match(line)
            if not found or found[1] != '"':
                continue
            other = Path(found[2]).parent.as_posix()
            if other in FLOORS and FLOORS.index(other) > FLOORS.index(folder):
                yield Violation(file, number, f"{other}/ stands above {folder}/: turn the call around, or move a file")


def includes_of(root: Path, file: Path, seen: set[Path]) -> set[str]:
    """Returns the names that `file` includes, also through project headers. `seen` contains the files read already."""
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


def namespace_of(folder: str) -> str | None:
    """The namespace of a room. master/api implements what include/ declares, so it shares the namespace of include/."""
    names = {"master/api": [], "master/command_line": ["master", "command_line"]}.get(folder, folder.split("/"))
    if folder not in FLOORS or folder.startswith("libtorch"):
        return None
    return "::".join(["syncrun", "detail", *(name for name in names if name != "common")])


def namespaces(root: Path) -> Iterator[Violation]:
    """A room has a namespace of its own, so that a name says where it comes from. Within it, there may be others. A source
    may also define what the namespace around it declares: include/ does so. A file may declare types of other rooms."""
    for file in files(root, CPP_SUFFIXES):
        room = namespace_of(file.parent.as_posix())
        if room is None:
            continue
        inside = ""  # a block for another room, which only declares
        for number, line in enumerate(lines_of(root, file), 1):
            opened = NAMESPACE.match(line)
            if opened:
                name = f"syncrun::{opened[1]}" if opened[1].startswith("detail") else opened[1]
                is_interface = f"{room}::".startswith(f"{name}::") and file.suffix not in HEADER_SUFFIXES
                is_own = f"{name}::".startswith(f"{room}::") or name == "syncrun" or name == ENVIRONMENT
                inside = "" if is_own or is_interface else name
            elif inside and line and not DECLARED_TYPE.match(line) and not line.startswith("}  // namespace"):
                yield Violation(file, number, f"{inside} is not the namespace of {file.parent}/: put it into {room}")
                inside = ""
            elif line.startswith("}  // namespace"):
                inside = ""


def declared_members(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yields the member functions of a header's classes that the library defines: line, access and declaration."""
    is_class = is_exported = False
    access = declaration = ""
    depth = begin = 0
    for number, line in enumerate(lines, 1):
        code = NO_CODE.sub("", line)
        found = CLASS.match(code)
        if found and not is_class:
            is_class, is_exported = True, found["exported"] is not None
            access = "private" if code.startswith("class") else "public"
            declaration, depth = "", 0
        if not is_class:
            continue
        if depth == 1 and (label := ACCESS.match(code)):
            access, declaration = label[1], ""
            continue
        for character in code + " ":
            if character == "{":
                depth += 1
            elif character == "}":
                depth -= 1
                is_class = depth > 0
            elif depth == 1 and character == ";":
                text = " ".join(declaration.split())
                is_function = DECLARED_FUNCTION.search(text) and not NOT_A_MEMBER_FUNCTION.search(text)
                if is_function and (is_exported or "SYNCRUN_EXPORT" in text):
                    yield begin, access, text
            elif depth == 1:
                if not declaration.strip():
                    begin = number
                declaration += character
            # After the body of a function or of a type, another declaration begins.
            if depth <= 1 and character in "{};":
                declaration = ""


def interface_headers(root: Path) -> Iterator[Violation]:
    """Untyped entry points are in the two interface headers, each with a docstring. The other headers have typed templates
    only."""
    for file in files(root, HEADER_SUFFIXES):
        if not file.is_relative_to("include"):
            continue
        is_detail = False
        before = ""
        for number, line in enumerate(lines_of(root, file), 1):
            is_detail = (is_detail or DETAIL_BEGIN.match(line) is not None) and not DETAIL_END.match(line)
            if is_detail and EXPORTED.match(line):
                if file not in SEAM_HEADERS:
                    yield Violation(file, number, f"an untyped entry point is declared in an interface header: {', '.join(sorted(seam.name for seam in SEAM_HEADERS))}")
                elif not before.startswith("///"):
                    yield Violation(file, number, "an entry point of the interface has a docstring (a /// comment)")
            before = line
        if file in SEAM_HEADERS:
            continue
        for number, access, declaration in declared_members(lines_of(root, file)):
            if access != "public" or UNTYPED.search(declaration):
                yield Violation(file, number, "an untyped member is declared as a function, in an interface header")


def data_members(text: str) -> Iterator[tuple[int, str]]:
    """Yields the data members in a file: line and declaration, without the initial value."""
    text = NO_MEMBER.sub(lambda found: re.sub(r"[^\n]+", " ", found.group()), text)
    is_type = [False]  # one entry for each open brace
    statement, begin = "", 1
    line = 1
    for part in re.split(r"([{};\n])", text):
        if part not in ("{", "}", ";"):
            if not statement.strip():
                statement, begin = "", line
            statement += part
            line += part == "\n"
            while found := BEFORE_MEMBER.match(statement):
                statement, begin = statement[found.end():], line
            continue
        declaration = statement.partition("=")[0]
        if part in "{;" and is_type[-1] and declaration and not NO_DATA.match(declaration):
            yield begin, declaration
        if part == "{":
            is_type.append(TYPE_HEAD.match(statement) is not None)
        elif part == "}" and len(is_type) > 1:
            is_type.pop()
        statement, begin = "", line


def raw_handles(root: Path) -> Iterator[Violation]:
    for file in files(root, CPP_SUFFIXES):
        if OWNERS.search(file.stem):
            continue
        for line, declaration in data_members("\n".join(lines_of(root, file))):
            found = HANDLE.search(declaration)
            if found:
                what = f"a data member of type {found.group()}: hold an owner or a view, of a file owners.hpp or *_owners.hpp"
                yield Violation(file, line, what)


def file_length(root: Path) -> Iterator[Violation]:
    for file in files(root, SOURCE_SUFFIXES):
        count = len(lines_of(root, file))
        if count > MAX_LINES:
            yield Violation(file, count, f"{count} lines: over {MAX_LINES} is two files")


def plain_phrases(root: Path) -> Iterator[Violation]:
    pages = sorted(path.relative_to(root) for path in root.glob("*.md"))
    for file in [*pages, *files(root, PROSE_SUFFIXES)]:
        if file in PHRASE_LISTS:
            continue
        for number, line in enumerate(lines_of(root, file), 1):
            for phrase, instead in found_phrases(line):
                yield Violation(file, number, f"'{phrase}': write {instead}")


def prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines of a page and their numbers, without code and tables, which cannot be broken."""
    is_code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("    ", "|")) and " " in line.strip():
            yield number, line


def page_columns(root: Path) -> Iterator[Violation]:
    pages = [path.relative_to(root) for folder in (".", "packaging") for path in sorted((root / folder).glob("*.md"))]
    for page in [*pages, *files(root, {".md"})]:
        for number, line in prose(lines_of(root, page)):
            if len(line) > MAX_COLUMNS:
                yield Violation(page, number, f"{len(line)} columns: lines of pages end at {MAX_COLUMNS}")


def without_braces(path: str) -> list[str]:
    """a.{hpp,cpp} is a.hpp and a.cpp."""
    found = BRACES.search(path)
    if not found:
        return [path]
    return [each for part in found[1].split(",") for each in without_braces(path[: found.start()] + part + path[found.end():])]


def paths_in_pages(root: Path) -> Iterator[Violation]:
    """The files and folders that a page names exist."""
    names = {file.name for file in files(root, set())}
    pages = [path.relative_to(root) for folder in (".", "packaging") for path in sorted((root / folder).glob("*.md"))]
    for page in [*pages, *files(root, {".md"})]:
        for number, line in enumerate(lines_of(root, page), 1):
            for found in PATH_IN_PAGE.finditer(line):
                for path in without_braces(found["path"] or found["source"]):
                    exists = any(root.glob(path)) if found["path"] else path in names
                    if not exists and not PLACEHOLDER.search(path):
                        yield Violation(page, number, f"there is no {path}")


def locale_free(root: Path) -> Iterator[Violation]:
    """The library writes and reads the same text in every locale."""
    for file in files(root, CPP_SUFFIXES):
        if room_of(file) not in TYPE_ROOMS:
            continue
        for number, line in enumerate(lines_of(root, file), 1):
            found = LOCALE_NUMBER.search(line.partition("//")[0])
            if found:
                yield Violation(file, number, f"'{found.group()}' follows the locale: use common/text/numbers.hpp, from_chars or to_chars")


def checked_locks(root: Path) -> Iterator[Violation]:
    """Clang knows each mutex of the library, and what it guards."""
    for file in files(root, CPP_SUFFIXES):
        if room_of(file) not in TYPE_ROOMS or file == MUTEX_HEADER:
            continue
        lines = lines_of(root, file)
        for number, line in enumerate(lines, 1):
            unchecked = UNCHECKED_LOCK.search(line.partition("//")[0])
            if unchecked:
                yield Violation(file, number, f"clang does not check '{unchecked.group()}': use {MUTEX_HEADER}")
            mutex = MUTEX.match(line)
            if mutex and not any(f"GUARDED_BY({mutex[1]})" in other for other in lines):
                yield Violation(file, number, f"no member is SYNCRUN_GUARDED_BY({mutex[1]}), so clang checks nothing")


def no_home_paths(root: Path) -> Iterator[Violation]:
    for file in files(root, set()):
        if b"\0" in (root / file).read_bytes()[:8192]:
            continue
        for number, line in enumerate(lines_of(root, file), 1):
            if HOME_PATH.search(line):
                yield Violation(file, number, "a path of somebody's home: it exists on one machine only")


RULES = {
    rule.__name__: rule
    for rule in (
        include_rules, floors, shared_headers, headers, namespaces, interface_headers, raw_handles, file_length, no_home_paths,
        plain_phrases, page_columns, paths_in_pages, locale_free, checked_locks,
    )
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

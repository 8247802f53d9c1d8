"""Checks the rooms in the compiled objects: which object uses symbols that another room defines.

    room_links.py NM OBJECTS SEAM_FOLDER

OBJECTS has a line for each room: its name and its object files. Objects may use symbols of other rooms only if MAY_USE
or ALLOWED says so.

Two folders consist of several rooms each:

- master/ has pieces that need nothing else of master/, which the program `syncrun` uses, and the rest, which it
  does not use. The libraries with the transport over MPI are a third room.
- worker/ has the library for CUDA devices, which is loaded if there is such a device, and the rest, which uses
  nothing of that library.

SEAM_FOLDER contains the headers of the interface. Bodies run in workers, so worker/ or common/ defines what worker_interface.hpp
declares. master/ or common/ defines what master_interface.hpp declares.

Prints each violation. Exit code 1 if there is one, or if a room was not checked. OBJECTS may leave out
worker/devices/cuda, master/nodes/mpi and libtorch only, because these rooms are empty without a CUDA compiler, an MPI
or LibTorch.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

MAY_USE = {
    "common": {"common"},
    "master_base": {"common", "master_base"},
    "master": {"common", "master_base", "master"},
    "master/doctor": {"common", "master_base", "master/doctor"},
    "master/command_line": {"common", "master_base", "master/doctor", "master/command_line"},
    "master/nodes/mpi": {"common", "master/nodes/mpi"},
    "worker": {"common", "worker"},
    "worker/devices/cuda": {"common", "worker", "worker/devices/cuda"},
    "libtorch": {"common", "worker", "libtorch"},
}
OPTIONAL = {"worker/devices/cuda", "master/nodes/mpi", "libtorch"}
INTERFACES = {"master_interface.hpp": {"master", "master_base"}, "worker_interface.hpp": {"worker"}}
# Exceptions: the symbols that an object may use in spite of MAY_USE. A comment says why.
ALLOWED: dict[str, set[str]] = {}
# The name of a function, or of a class with members, that an interface declares.
FUNCTION = re.compile(r"SYNCRUN_EXPORT [^;{}()]*?(~?\w+)\(")
CLASS = re.compile(r"^class (?:SYNCRUN_EXPORT )?(\w+) \{", re.MULTILINE)


class Object(NamedTuple):
    room: str
    name: str
    defines: set[str]
    uses: set[str]


def read_object(nm: str, room: str, path: str) -> Object:
    """Returns the symbols that an object defines for others, and those that it uses. Ignores weak symbols, because every
    object that uses one has it.
    """
    output = subprocess.run([nm, "-C", path], capture_output=True, text=True, check=True).stdout
    defines, uses = set(), set()
    for line in output.splitlines():
        kind, name = line[17:18], line[19:]
        if kind == "U":
            uses.add(name)
        elif kind in "TDBR":
            defines.add(name)
    return Object(room, re.sub(r"[.]o$", "", Path(path).name), defines, uses)


def read_rooms(nm: str, lines: list[list[str]]) -> list[Object]:
    return [read_object(nm, room, path) for room, *paths in lines for path in paths]


def wrong_links(objects: list[Object], allowed: dict[str, set[str]]) -> Iterator[str]:
    owners = {symbol: each for each in objects for symbol in each.defines}
    for each in objects:
        for symbol in sorted(each.uses - allowed.get(f"{each.room}/{each.name}", set())):
            owner = owners.get(symbol)
            if owner is not None and owner.room not in MAY_USE[each.room]:
                yield f"{each.room}/{each.name} uses {symbol} of {owner.room}/{owner.name}"


def names_in(header: str) -> set[str]:
    """Returns the names that an interface declares: those of functions, and those of classes, which stand for their members."""
    return set(FUNCTION.findall(header)) | set(CLASS.findall(header))


def declared_name(symbol: str) -> str:
    """Returns the name under which an interface declares a symbol.

    This is WorkerCall for 'syncrun::detail::WorkerCall::rows(unsigned long)', and wait_all for
    'syncrun::detail::wait_all(...)'.
    """
    found = re.match(r"syncrun::detail::(\w+)(?:\[abi:\w+\])?(?:::[~\w]+(?:\[abi:\w+\])?)?\(", symbol)
    return found.group(1) if found else ""


def wrong_sides(objects: list[Object], interfaces: dict[str, set[str]]) -> Iterator[str]:
    for each in objects:
        for symbol in sorted(each.defines):
            rooms = {room for header, names in interfaces.items() if declared_name(symbol) in names for room in INTERFACES[header]}
            if rooms and each.room != "common" and each.room not in rooms:
                yield f"{each.room}/{each.name} defines {symbol}, which an interface has for {' and '.join(sorted(rooms))}/"


def unchecked_rooms(objects: list[Object], listed: set[str]) -> set[str]:
    """Returns the rooms without objects or without a rule."""
    return ((set(MAY_USE) - OPTIONAL) | listed) - {each.room for each in objects if each.defines and each.room in MAY_USE}


def main(nm: str, listing: str, interface_folder: str) -> int:
    lines = [line.split() for line in Path(listing).read_text(encoding="utf-8").splitlines() if line.strip()]
    objects = read_rooms(nm, lines)
    interfaces = {header: names_in((Path(interface_folder) / header).read_text(encoding="utf-8")) for header in INTERFACES}
    unchecked = sorted(unchecked_rooms(objects, {line[0] for line in lines}))
    if unchecked or not all(interfaces.values()):
        print(f"a room without objects or rules ({', '.join(unchecked)}), or an interface without functions: nothing was checked")
        return 1
    violations = [*wrong_links(objects, ALLOWED), *wrong_sides(objects, interfaces)]
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

"""Rooms, in what was compiled: which object uses what another room defines.

    room_links.py NM OBJECTS SEAM_FOLDER

OBJECTS has a line for each room: its name and its object files. Objects of launcher/ use nothing that worker/ defines, those of
worker/ nothing of launcher/, and those of common/ nothing of either, except what ALLOWED names.

SEAM_FOLDER holds the headers of the seam. Bodies run in workers: what worker_seam.hpp declares is defined in worker/ or common/.
What master_seam.hpp declares is defined in launcher/ or common/.

Prints each violation. Exit code 1 if there is one, or if nothing was checked.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

MAY_USE = {"common": {"common"}, "launcher": {"common", "launcher"}, "worker": {"common", "worker"}}
SEAMS = {"master_seam.hpp": "launcher", "worker_seam.hpp": "worker"}
# By object: what it may use all the same, and why.
ALLOWED: dict[str, set[str]] = {}
# A function, or a member of a class, that a seam declares.
FUNCTION = re.compile(r"SYNCRUN_EXPORT [^;{}()]*?(~?\w+)\(")
CLASS = re.compile(r"^class (?:SYNCRUN_EXPORT )?(\w+) \{", re.MULTILINE)


class Object(NamedTuple):
    room: str
    name: str
    defines: set[str]
    uses: set[str]


def read_object(nm: str, room: str, path: str) -> Object:
    """What other objects find in it, and what it takes from them. Weak symbols are in every object that uses them."""
    output = subprocess.run([nm, "-C", path], capture_output=True, text=True, check=True).stdout
    defines, uses = set(), set()
    for line in output.splitlines():
        kind, name = line[17:18], line[19:]
        if kind == "U":
            uses.add(name)
        elif kind in "TDBR":
            defines.add(name)
    return Object(room, re.sub(r"[.]o$", "", Path(path).name), defines, uses)


def read_rooms(nm: str, listing: str) -> list[Object]:
    lines = [line.split() for line in Path(listing).read_text(encoding="utf-8").splitlines()]
    return [read_object(nm, room, path) for room, *paths in lines for path in paths]


def wrong_links(objects: list[Object], allowed: dict[str, set[str]]) -> Iterator[str]:
    owners = {symbol: each for each in objects for symbol in each.defines}
    for each in objects:
        for symbol in sorted(each.uses - allowed.get(f"{each.room}/{each.name}", set())):
            owner = owners.get(symbol)
            if owner is not None and owner.room not in MAY_USE[each.room]:
                yield f"{each.room}/{each.name} uses {symbol} of {owner.room}/{owner.name}"


def names_in(header: str) -> set[str]:
    """What a seam declares: functions, and classes for their members."""
    return set(FUNCTION.findall(header)) | set(CLASS.findall(header))


def declared_name(symbol: str) -> str:
    """'syncrun::detail::WorkerCall::rows(unsigned long)' is of WorkerCall, 'syncrun::detail::wait_all(...)' is wait_all."""
    found = re.match(r"syncrun::detail::(\w+)(?:\[abi:\w+\])?(?:::[~\w]+(?:\[abi:\w+\])?)?\(", symbol)
    return found.group(1) if found else ""


def wrong_sides(objects: list[Object], seams: dict[str, set[str]]) -> Iterator[str]:
    for each in objects:
        for symbol in sorted(each.defines):
            rooms = {SEAMS[header] for header, names in seams.items() if declared_name(symbol) in names}
            if rooms and each.room != "common" and each.room not in rooms:
                yield f"{each.room}/{each.name} defines {symbol}, which a seam has for {' and '.join(sorted(rooms))}/"


def main(nm: str, listing: str, seam_folder: str) -> int:
    objects = read_rooms(nm, listing)
    seams = {header: names_in((Path(seam_folder) / header).read_text(encoding="utf-8")) for header in SEAMS}
    violations = [*wrong_links(objects, ALLOWED), *wrong_sides(objects, seams)]
    for violation in violations:
        print(violation)
    if {each.room for each in objects if each.defines} != set(MAY_USE) or not all(seams.values()):
        print("a room without objects, or a seam without functions: nothing was checked")
        return 1
    return 1 if violations else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

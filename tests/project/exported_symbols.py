"""Finds symbols that a library exports and that are not for its users.

    exported_symbols.py NM LIBRARY...

A library exports the symbols of namespace syncrun, the type information of what it throws, and the symbols in LISTED.
Any other symbol could replace one that a program brings along: a function of spdlog, fmt or Boost, for example, or a
template of the standard library. Exit code 1 if there is such a symbol, or if a library exports nothing.
"""

import re
import subprocess
import sys

# Symbols that another library looks up by name, by the file name of their library without its version.
LISTED = {
    "libsyncrun_cuda.so": {"syncrun_make_cuda_device", "syncrun_part_version"},
    "libsyncrun_openmpi.so": {"syncrun_make_transport", "syncrun_part_version"},
    "libsyncrun_mpich.so": {"syncrun_make_transport", "syncrun_part_version"},
}
OWN = re.compile(r"(?:(?:typeinfo|typeinfo name|vtable|VTT) for )?syncrun::")
FOREIGN = re.compile(r"\b(?:spdlog|fmt|boost)::")


def is_for_users(symbol: str, listed: set[str]) -> bool:
    return symbol in listed or (OWN.match(symbol) is not None and not FOREIGN.search(symbol))


def exported(nm: str, library: str) -> list[str]:
    output = subprocess.run([nm, "-D", "-C", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    # A line has an address, a kind and the name: "0000000000054d30 T syncrun::version()".
    return [line.split(maxsplit=2)[2] for line in output.splitlines()]


def main(nm: str, *libraries: str) -> int:
    has_failed = False
    for library in libraries:
        name = re.sub(r"[.]so[.\d]*$", ".so", library.rsplit("/", 1)[-1])
        symbols = exported(nm, library)
        others = [symbol for symbol in symbols if not is_for_users(symbol, LISTED.get(name, set()))]
        for symbol in others:
            print(f"{name} exports {symbol}")
        if not symbols:
            print(f"{name} exports nothing")
        has_failed |= bool(others) or not symbols
    return 1 if has_failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

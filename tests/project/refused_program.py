"""Compiles tests/project/contract/refused.cpp with one macro, and checks what the compiler says.

    refused_program.py MACRO WORDS PLACE refused.cpp COMPILER OPTION...

The compiler must refuse the program. An error or one of its notes must contain WORDS, which are a regular expression.
The compiler must also name one of the lines that the macro adds to the program: in its first error if PLACE is `first`,
and anywhere if it is `anywhere`. Otherwise this script prints what the compiler said, and exits with 1.
"""

import re
import subprocess
import sys


def lines_of(macro: str, text: str) -> set[int]:
    """Returns the numbers of the lines that are compiled only with this macro, or with another one in its condition."""
    found = set()
    inside = False
    condition = ""
    for number, line in enumerate(text.splitlines(), 1):
        if condition or re.match(r"\s*#\s*(if|elif|else|endif)\b", line):
            condition += line
            if condition.endswith("\\"):
                continue
            inside = re.search(rf"defined\({macro}\)", condition) is not None
            condition = ""
        elif inside:
            found.add(number)
    return found


def main(macro: str, words: str, place: str, path: str, *compiler: str) -> int:
    with open(path, encoding="utf-8") as file:
        own = lines_of(macro, file.read())
    if not own:
        print(f"{path} has no lines for {macro}")
        return 1
    result = subprocess.run([*compiler, f"-D{macro}", path], capture_output=True, text=True, check=False)
    said = result.stderr
    named = {int(number) for number in re.findall(rf"{re.escape(path)}:(\d+):", said)}
    first = re.search(rf"^.*?(?:{re.escape(path)}:(\d+):\d+: )?error: ", said, re.MULTILINE)
    if result.returncode == 0:
        print("compiles, and has to be refused")
    elif not re.search(rf"(?:error|note): [^\n]*(?:{words})", said):
        print(f"is refused without the words '{words}'")
    elif place == "first" and not (first and first[1] and int(first[1]) in own):
        print("the first error is not at a line of the program's own")
    elif not named & own:
        print(f"is refused without a line of the program's own: lines {sorted(named)} are named, {sorted(own)} are its own")
    else:
        return 0
    print(said)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

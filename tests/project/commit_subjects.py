#!/usr/bin/env python3
"""Checks the house rule on commits: the subject of each new commit is short, plain and imperative.

usage: commit_subjects.py ROOT

The commits after FIRST are new. The last one is left out if its subject is a single word: systems that test a change
may commit it with a subject of their own. Prints each violation as COMMIT: what is wrong: subject. Exit code 1 if there is one.
Exit code 77 (skipped) if there is no history: in an unpacked archive, or in a clone that does not reach back to FIRST.
"""

import re
import subprocess
import sys

sys.dont_write_bytecode = True
from plain_phrases import found_phrases  # noqa: E402

# The last commit before this rule was made.
FIRST = "8122be6"
MAX_CHARACTERS = 72
SKIPPED = 77
NOT_IMPERATIVE = re.compile(r"^(\w+(ed|ing)|The|A|An|This|It)$")
# Verbs in the imperative that end like a past tense or a participle.
IMPERATIVE = {"Need", "Feed", "Embed", "Bring", "Shed", "Speed", "Exceed", "Proceed", "Ring", "Seed", "String"}


def wrong_subject(subject):
    """Returns what is wrong with the subject, as a list of sentences."""
    wrong = []
    if len(subject) > MAX_CHARACTERS:
        wrong.append(f"it has {len(subject)} characters, at most {MAX_CHARACTERS} are allowed")
    if subject.endswith("."):
        wrong.append("it ends with a period")
    words = subject.split()
    if not words or not words[0][0].isupper():
        wrong.append("it does not begin with a capital letter")
    elif NOT_IMPERATIVE.match(words[0]) and words[0] not in IMPERATIVE:
        wrong.append(f"it begins with '{words[0]}', not with a verb in the imperative")
    wrong += [f"'{phrase}': write {instead}" for phrase, instead in found_phrases(subject)]
    return wrong


def git(root, *arguments):
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)


def main(root):
    if git(root, "merge-base", "--is-ancestor", FIRST, "HEAD").returncode != 0:
        print("there is no history back to", FIRST)
        return SKIPPED
    count = 0
    lines = git(root, "log", "--no-merges", "--format=%h %s", f"{FIRST}..HEAD").stdout.splitlines()
    for position, line in enumerate(lines):
        commit, _, subject = line.partition(" ")
        if position == 0 and " " not in subject:
            continue
        for what in wrong_subject(subject):
            print(f"{commit}: {what}: {subject}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))

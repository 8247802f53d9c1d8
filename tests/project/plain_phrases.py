"""Phrases that the guide to plain English (docs/contributing.md) replaces. Each has a pattern, and what to write
instead.
"""

import re

PHRASES = [
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"\bto be had\b", "'available'"),
        (r"\bfor want of\b|\bno want of\b", "'for lack of', or what is missing"),
        (r"\bbe it none\b", "'possibly with zero ...'"),
        (r"\bso often at most\b", "'at most N times'"),
        (r"\bor is none\b", "'or is empty'"),
        (r"\bthere were none\b", "'... were not available'"),
        (r"\bwho is awake\b", "what happens when no process sleeps"),
        (r"\bsleepers and ringers\b", "'sleeping and waking'"),
        (r"\bat most once grown past\b", "how often the segment may grow"),
        (r"\bthey know (Debian|Ubuntu)\b", "'they support ...'"),
    )
]


def found_phrases(line):
    """The phrases in the line, each with what to write instead."""
    return [(found.group(0), instead) for pattern, instead in PHRASES if (found := pattern.search(line))]

"""Finds tests that compute and have less time than they may need under load.

    time_limits.py CTEST BUILD LEAST_S

Tests that compute are those with the label `unit` or `process`, and those of the demos with the label `fault`, which
kill processes. Tests on GPUs are not among them, because no other test uses the GPUs at the same time. A test without a
limit of its own has that of ctest, which is longer.
"""

import json
import subprocess
import sys


def properties_of(test: dict) -> dict:
    return {entry["name"]: entry["value"] for entry in test.get("properties", [])}


def computes(test: dict) -> bool:
    labels = set(properties_of(test).get("LABELS", []))
    if "fault" in labels:
        return any("/demos/" in word for word in test.get("command", []))
    return bool(labels & {"unit", "process"})


def main(ctest: str, build: str, least_s: str) -> int:
    command = [ctest, "--test-dir", build, "--show-only=json-v1"]
    tests = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["tests"]
    computing = [test for test in tests if computes(test)]
    short = {
        test["name"]: properties_of(test)["TIMEOUT"]
        for test in computing
        if properties_of(test).get("TIMEOUT", float(least_s)) < float(least_s)
    }
    for name, limit_s in short.items():
        print(f"{name} has {limit_s} s, {least_s} or more are wanted (SYNCRUN_COMPUTING_TEST_TIMEOUT_S)")
    print(f"looked at {len(computing)} tests of {len(tests)}")
    return 1 if short or not computing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Finds tests that compute and have less time than they may need under load.

    time_limits.py CTEST BUILD LEAST_S

Tests that compute are those with the label `unit`, `process` or `install`, and some of those with the label `fault`:
those of the demos, and those that run alone (RUN_SERIAL), because they use all cores. Tests on several nodes run alone
for another reason, and mostly wait. Tests on GPUs are not among them, because no other test uses the GPUs at the same
time. A test without a limit of its own has that of ctest, which is longer.
"""

import json
import subprocess
import sys


def properties_of(test: dict) -> dict:
    return {entry["name"]: entry["value"] for entry in test.get("properties", [])}


def computes(test: dict) -> bool:
    properties = properties_of(test)
    labels = set(properties.get("LABELS", []))
    if "nodes" in labels:
        return False
    if "fault" in labels:
        return properties.get("RUN_SERIAL", False) or any("/demos/" in word for word in test.get("command", []))
    return bool(labels & {"unit", "process", "install"})


def short_limits(tests: list[dict], least_s: float) -> dict[str, float]:
    limits_s = {test["name"]: properties_of(test).get("TIMEOUT", least_s) for test in tests if computes(test)}
    return {name: limit_s for name, limit_s in limits_s.items() if limit_s < least_s}


def main(ctest: str, build: str, least_s: str) -> int:
    command = [ctest, "--test-dir", build, "--show-only=json-v1"]
    tests = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["tests"]
    computing = [test for test in tests if computes(test)]
    short = short_limits(tests, float(least_s))
    for name, limit_s in short.items():
        print(f"{name} has {limit_s} s, {least_s} or more are wanted (SYNCRUN_COMPUTING_TEST_TIMEOUT_S)")
    print(f"looked at {len(computing)} tests of {len(tests)}")
    return 1 if short or not computing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

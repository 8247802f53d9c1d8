"""Code that the runners of benchmarks share: it finds a program, runs it with a deadline, reads its output, and
describes the machine. Requires only Python's standard library.
"""

import json
import os
import pathlib
import platform
import re
import signal
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77  # the exit status of a program that has nothing to run on


def find_executable(directory, name):
    for folder, subfolders, files in os.walk(directory):
        subfolders[:] = sorted(s for s in subfolders if s not in ("CMakeFiles", "_deps"))
        path = pathlib.Path(folder, name)
        if name in files and os.access(path, os.X_OK):
            return str(path)
    return None


def stop_group(process):
    for sig, grace_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, sig)
            return process.communicate(timeout=grace_s)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    return process.communicate()


def execute(command, deadline_s, environment=None):
    """Runs a program in a process group of its own. Returns its standard output, and why it failed (empty if it did
    not)."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **(environment or {})})
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        out, _ = stop_group(process)
        return out, f"still running after {deadline_s} s"
    except BaseException:
        stop_group(process)
        raise
    if process.returncode == 0:
        return out, ""
    if process.returncode == SKIPPED:
        return out, reason_in(err)
    return out, f"exit status {process.returncode}: {reason_in(err)}"


def reason_in(messages):
    """Returns the line that gives the reason for a failure: the last line. torchrun ends with a summary, so for
    torchrun it is the last error of a rank."""
    lines = messages.strip().splitlines() or ["no message"]
    of_ranks = [line for line in lines if re.match(r"\[rank\d+\]:.*(Error|Exception)\b", line)]
    return (of_ranks or lines)[-1].strip()


def json_lines(text):
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def machine():
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": model.group(1) if model else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def commit():
    described = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude=*"],
                               capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"

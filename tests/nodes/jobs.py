"""Programs that tests start on the hosts."""

import os
import re
import signal
import subprocess
import threading
import time

RUN_LIMIT_S = 240


class Job:
    """A program that runs on the hosts. Collects its output, with the time of each line. `before` is a command that starts
    syncrun on each host."""

    def __init__(self, group, engine, action, nodes=3, workers=2, more=(), before=(), *, syncrun, program, **kwargs):
        self.group = group
        command = [*before, syncrun, "-n", str(workers), *more, program, *map(str, action)]
        self.process = group.hosts.start(
            "n1", engine.command(group.hosts, nodes, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, **{"stdin": subprocess.DEVNULL, **kwargs})  # fmt: skip
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append((time.monotonic(), line.rstrip("\n")))

    @property
    def text(self):
        return "\n".join(line for _, line in list(self.lines))

    def time_of(self, pattern):
        return next((when for when, line in list(self.lines) if re.search(pattern, line)), None)

    def await_line(self, pattern, limit=RUN_LIMIT_S):
        end = time.monotonic() + limit
        while self.time_of(pattern) is None:
            if time.monotonic() > end or (self.process.poll() is not None and not self.reader.is_alive()):
                self.group.fail(f"no line with {pattern!r}:\n{self.text}")
            time.sleep(0.005)
        return self.time_of(pattern)

    def finish(self, limit=RUN_LIMIT_S):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            self.group.fail(f"the job did not end within {limit} s:\n{self.text}")
        self.reader.join(5)
        return code

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

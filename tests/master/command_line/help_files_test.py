#!/usr/bin/env python3
"""Tests the man page and the completions that `syncrun` writes, and that the page about it has all options. Skipped (exit code 77) if the program that reads them is
not installed.

usage: help_files_test.py SYNCRUN man_page|table|bash|zsh|fish
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/api/command-line.md"
LIMIT_S = 120  # for one line that is typed. The shells answer at once, unless the machine is busy


def skip_without(program):
    if shutil.which(program) is None:
        print(f"skipped: {program} is not installed")
        sys.exit(77)


def written_by(syncrun, *words):
    return subprocess.run([syncrun, *words], check=True, capture_output=True, text=True).stdout


def own_options(syncrun):
    return re.findall(r"^ {2}(?:-\w, | {4})(--[\w-]+(?: \S+)?)", written_by(syncrun, "--help"), re.MULTILINE)


def check_table(syncrun):
    """The table beside other launchers has a row for each option of `syncrun`."""
    table = PAGE.read_text().partition("## Beside other launchers")[2].partition("What the others have")[0]
    own = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    named = {*re.findall(r"--[a-z][a-z-]*", own), *(["--nproc-per-node"] if "`-n N`" in own else [])}
    options = {option.split()[0] for option in own_options(syncrun)}
    assert "--nproc-per-node" in options and len(options) > 40, options
    assert options == named, options ^ named


def check_man_page(syncrun):
    skip_without("groff")
    page = written_by(syncrun, "help", "--man")
    groff = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=200n"], input=page, text=True,
                           capture_output=True, check=True)
    assert groff.stderr == "", groff.stderr
    if shutil.which("mandoc"):
        lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning"], input=page, text=True, capture_output=True, check=False)
        findings = [line for line in lint.stdout.splitlines() if "missing date" not in line]
        assert not findings, findings
    text = " ".join(groff.stdout.split())
    usage = written_by(syncrun, "--help")
    options = own_options(syncrun)
    assert "--nproc-per-node N|cpu|gpu|auto" in options and "--help" in options, options
    topics = re.search(r"Topics of .*: (.*)\.$", usage, re.MULTILINE).group(1).split(", ")
    for word in [*options, "syncrun completions SHELL", "SYNCRUN_TIMEOUT", "128+N after signal N"]:
        assert word.strip() in text, word
    for topic in topics:
        assert topic.upper().replace("-", " ") in text, topic
        assert re.search(r"\nMore: docs/\S+\.md in the sources of Syncrun\n$", written_by(syncrun, "help", topic)), topic


class Shell:
    """A shell on a terminal, in which `syncrun` is a function that writes its words to a file."""

    def __init__(self, name, syncrun, folder):
        skip_without(name)
        self.words = folder / "words"
        (folder / "folder_of_logs").mkdir()
        (folder / "file_of_the_program").touch()
        (folder / "program").write_text("#!/bin/sh\n")
        (folder / "program").chmod(0o755)
        script = folder / "_syncrun"
        script.write_text(written_by(syncrun, "completions", name))
        start = folder / ("config" if name != "zsh" else ".zshrc")
        posix = f"syncrun() {{ printf '%s|' \"$@\" >'{self.words}.new'; mv '{self.words}.new' '{self.words}'; }}\n"
        if name == "bash":
            start.write_text(f"PS1='READY>'\n{posix}source '{script}'\n")
            command = ["bash", "--noprofile", "--rcfile", str(start), "-i"]
        elif name == "zsh":
            start.write_text(f"PS1='READY>'\nfpath=('{folder}' $fpath)\nautoload -Uz compinit\ncompinit -D -u\n{posix}")
            command = ["zsh", "-d", "-i"]
        else:
            start.write_text(f"function fish_prompt; echo 'READY>'; end\nfunction syncrun; printf '%s|' $argv "
                             f">'{self.words}.new'; mv '{self.words}.new' '{self.words}'; end\nsource '{script}'\n")
            command = ["fish", "--no-config", "-i", "-C", f"source '{start}'"]
        self.seen = b""
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ.update(HOME=str(folder), ZDOTDIR=str(folder), TERM="dumb" if name == "bash" else "xterm")
            os.execvp(command[0], command)
        self.wait_until(lambda: b"READY>" in self.seen)

    def wait_until(self, holds):
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, f"waited in vain; the terminal shows {self.seen!r}"
            if select.select([self.terminal], [], [], 0.05)[0]:
                self.seen += os.read(self.terminal, 65536)

    def expect(self, typed, words):
        """Types a line, in which <TAB> is the key, and compares the words that `syncrun` gets."""
        self.seen = b""
        self.words.unlink(missing_ok=True)
        os.write(self.terminal, typed.replace("<TAB>", "\t").encode() + b"\r")
        self.wait_until(self.words.exists)
        got = self.words.read_text()
        assert got == "".join(word + "|" for word in words), f"{typed}: expected {words}, got {got}"
        self.wait_until(lambda: b"READY>" in self.seen)


def check_completions(syncrun, name):
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(name, syncrun, Path(folder))
        # zsh writes the value of a long option after =, and removes the slash behind a folder.
        folder_of_logs = "folder_of_logs" if name == "zsh" else "folder_of_logs/"
        timeout = ["--start-timeout=7"] if name == "zsh" else ["--start-timeout", "7"]
        shell.expect("syncrun --start-t<TAB>7 ./program", [*timeout, "./program"])
        shell.expect("syncrun --log-level war<TAB> ./program", ["--log-level", "warning", "./program"])
        shell.expect("syncrun --log-level=war<TAB> ./program", ["--log-level=warning", "./program"])
        shell.expect("syncrun -n gp<TAB> ./program", ["-n", "gpu", "./program"])
        shell.expect("syncrun --log-dir fold<TAB> ./program", ["--log-dir", folder_of_logs, "./program"])
        shell.expect("syncrun -n 2 ./pro<TAB> fil<TAB>", ["-n", "2", "./program", "file_of_the_program"])
        shell.expect("syncrun --dr<TAB> ./program --start-t<TAB>", ["--dry-run", "./program", "--start-t"])
        shell.expect("syncrun completi<TAB> fis<TAB>", ["completions", "fish"])
        shell.expect("syncrun help exit<TAB>", ["help", "exit-codes"])
        shell.expect("syncrun config --start-t<TAB>", ["config", "--start-timeout"])
        shell.expect("syncrun report js<TAB>", ["report", "js"])
    script = written_by(syncrun, "completions", name)
    assert "in-opened-terminal" not in script, "a subcommand that is not for users"


def main():
    syncrun, what = sys.argv[1:]
    if what == "man_page":
        check_man_page(syncrun)
    elif what == "table":
        check_table(syncrun)
    else:
        check_completions(syncrun, what)


if __name__ == "__main__":
    main()

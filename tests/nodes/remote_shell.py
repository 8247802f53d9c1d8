#!/usr/bin/env python3
"""remote_shell.py [options] HOST COMMAND...: runs a command on one of the hosts of hosts.py, in the folder of the caller.

Engines call it in place of ssh, on a host or outside of the hosts. It has the caller's standard streams, and ends as the
command ends. A process outside of the hosts starts the command, because no host can start anything on another one.
"""

import json
import os
import socket
import sys


def main():
    arguments = sys.argv[1:]
    while arguments and arguments[0].startswith("-"):
        arguments.pop(0)  # options of ssh and rsh
    request = {"host": arguments[0], "folder": os.getcwd(), "command": " ".join(arguments[1:])}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(os.environ["SYNCRUN_TEST_HOSTS"])
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        answer = server.recv(16)
    code = int(answer) if answer else 255
    sys.exit(code if code >= 0 else 128 - code)


main()

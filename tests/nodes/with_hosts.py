#!/usr/bin/env python3
"""with_hosts.py COUNT COMMAND...: runs a command on n1 of COUNT hosts (hosts.py), with a Slurm if the command is srun, sbatch
or sh. The hosts end with the command."""

import os
import sys

from engines import Slurm
from hosts import Hosts, why_impossible


def main():
    if reason := why_impossible():
        sys.exit(f"no hosts: {reason}")
    count, command = int(sys.argv[1]), sys.argv[2:]
    with Hosts(count, keep=[os.getcwd()], is_patient=True) as hosts:
        if os.path.basename(command[0]) in ("srun", "sbatch", "sh", "bash"):
            Slurm(hosts)
        sys.exit(hosts.start("n1", command).wait())


main()

#!/usr/bin/env python3
"""model_nodes.py: what calls over nodes of 8 GPUs cost, as a model, from 2 to 128 nodes.

    model_nodes.py --build FOLDER                      # constants measured here, over two hosts of this machine
    model_nodes.py --constants tcp --constants infiniband [--build FOLDER] [--json FILE]
    model_nodes.py --constants my_cluster.json         # the fields of Constants; "source" says where they are from

With --build, it also simulates the empty call with the code of the master and of the agents in virtual time
(tests/master/nodes/simulation), and prints the simulated times beside the model's. It also prints how long the code
of the master took, in this process, to send a command to all nodes and to take their reports. --check fails if a time
differs by more than 20 %, or if the tree does not win where it should.

The constants of one call, in microseconds:
    here        an empty call on one node
    overhead    of the sender for a message, and of the receiver
    latency     of a message, between these two
    workers     from a command that an agent gives to its workers to its report
Measured constants need root, Open MPI, and the tools of tests/nodes/hosts.py. The hosts are namespaces of this machine,
so they share its cores: their constants say nothing about a real network.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

from programs import commit, find_executable, json_lines, machine

ROOT = Path(__file__).resolve().parent.parent
NODES = (2, 4, 8, 16, 32, 64, 128)
GPUS = 8  # of each node
FRESH_BYTES = 64 << 20  # for each GPU
REDUCED_BYTES = 100_000_000
MOST_DIFFERENCE = 0.2
CHECKED_FAN_OUTS = (2, 3, 5, 8, 16)  # --check compares these too
RUN_LIMIT_S = 120
SIMULATION_LIMIT_S = 1200  # it takes seconds, and minutes on a machine with much other work

# What the simulation counts: a command without arguments, what a relayed command adds for itself and for each node, the
# report of a rank, and what relayed reports add for themselves and for each node.
COMMAND_BYTES, RELAY_BYTES, NODE_BYTES = 426, 58, 12
REPORT_BYTES, REPORTS_BYTES, REPORTS_NODE_BYTES = 39, 18, 13


@dataclasses.dataclass(frozen=True)
class Constants:
    name: str
    source: str
    here_us: float
    overhead_us: float
    latency_us: float
    workers_us: float
    gb_per_s: float  # of a network card
    rails: int = 1  # network cards of a node
    # What all_reduce reaches within a node. NCCL among four H200s: 1 GiB in 4,527 us (results/gpu_4_h200.json).
    gpu_gb_per_s: float = 355
    tree_wins_from: int = 32  # nodes, for --check


KNOWN = {
    "tcp": Constants("tcp", "assumed; near to what two hosts of one machine showed with an early prototype",
                     here_us=2.5, overhead_us=4.5, latency_us=7.5, workers_us=1, gb_per_s=1.05, tree_wins_from=16),
    "infiniband": Constants("infiniband", "assumed: nothing was measured on such a network",
                            here_us=2.5, overhead_us=0.4, latency_us=2, workers_us=0.5, gb_per_s=45, rails=8),
}  # fmt: skip


# ---- the model


def message_us(constants, size):
    """What a message costs its sender, and also its receiver."""
    return constants.overhead_us + size / (constants.gb_per_s * 1e3)


def exchange_us(constants, children, down_bytes, up_bytes, answer):
    """The time of a node from a command to the reports of all children. `answer` is the time of a child between its two
    messages. Either the node is busy all the time, or it waits: one child costs four overheads, two latencies and its
    answer, and the others follow it at the pace of the slower direction."""
    down, up = message_us(constants, down_bytes), message_us(constants, up_bytes)
    one = 2 * down + 2 * up + 2 * constants.latency_us + answer
    return max(children * (down + up), one + (children - 1) * max(down, up))


def star_us(constants, nodes):
    answer = exchange_us(constants, nodes - 1, COMMAND_BYTES, REPORT_BYTES * GPUS, constants.workers_us)
    return constants.here_us + answer


@functools.lru_cache(maxsize=None)
def branch_us(constants, nodes, fan_out):
    """The time of a node between a command and its report, if so many nodes, itself included, are in its branch."""
    if nodes == 1:
        return constants.workers_us
    children = min(fan_out, nodes - 1)
    smallest, larger = divmod(nodes - 1, children)  # so many of the branches below, the first ones, have a node more
    groups = [(children, smallest)] + ([(larger, smallest + 1)] if larger else [])
    return max(exchange_us(constants, count, COMMAND_BYTES + RELAY_BYTES + NODE_BYTES * size,
                           REPORTS_BYTES + (REPORT_BYTES * GPUS + REPORTS_NODE_BYTES) * size,
                           branch_us(constants, size, fan_out))
               for count, size in groups)  # fmt: skip


def tree_us(constants, nodes, fan_out):
    return constants.here_us + branch_us(constants, nodes, fan_out)


def best_tree(constants, nodes):
    """Returns the fan-out with the shortest call, and the call. In a tree, each child of the master has a child. With
    more children it is nearly a star."""
    fan_outs = range(1, max(2, (nodes - 1) // 2 + 1))
    return min(((fan_out, tree_us(constants, nodes, fan_out)) for fan_out in fan_outs), key=lambda tree: tree[1])


def simple_us(constants, nodes, fan_out):
    """A formula to do in one's head: each level sends to all children, waits for two messages, and hears them all."""
    depth = 0
    reached = 1
    while reached < nodes:
        depth += 1
        reached += fan_out**depth
    level = 2 * constants.latency_us + 2 * fan_out * constants.overhead_us + constants.workers_us
    return constants.here_us + depth * level


def fresh_ms(constants, nodes):
    """A call with rows that only the master has. They leave through its network card."""
    return star_us(constants, nodes) / 1e3 + (nodes - 1) * GPUS * FRESH_BYTES / (constants.gb_per_s * 1e6)


def reduce_ms(constants, nodes):
    """all_reduce: reduce_scatter on each node, all_reduce of the parts between nodes, all_gather on each node. The two
    times are with the three stages at once, in chunks, and one after the other."""
    inside = 2 * (GPUS - 1) / GPUS * REDUCED_BYTES / (constants.gpu_gb_per_s * 1e6)
    steps = 2 * math.ceil(math.log2(nodes)) * (constants.latency_us + 2 * constants.overhead_us) / 1e3
    between = 2 * (nodes - 1) / nodes * REDUCED_BYTES / (constants.rails * constants.gb_per_s * 1e6) + steps
    return max(inside, between), inside + between


def first_better_tree(constants):
    """The number of nodes from which on the tree is always faster."""
    worse = [nodes for nodes in range(2, NODES[-1] + 1) if best_tree(constants, nodes)[1] >= star_us(constants, nodes)]
    return worse[-1] + 1


def rows_of(constants):
    rows = []
    for nodes in NODES:
        fan_out, tree = best_tree(constants, nodes)
        rows.append({"nodes": nodes, "star_us": star_us(constants, nodes), "tree_us": tree, "fan_out": fan_out,
                     "simple_star_us": simple_us(constants, nodes, nodes - 1),
                     "simple_tree_us": simple_us(constants, nodes, fan_out),
                     "fresh_ms": fresh_ms(constants, nodes), "all_reduce_ms": reduce_ms(constants, nodes)})  # fmt: skip
    return rows


# ---- the simulation


def simulated(program, constants, shapes, calls):
    """The last of so many simulated calls, by shape: "16" is a star, and "16:4" a tree with fan-out 4."""
    costs = [constants.overhead_us, constants.latency_us, constants.gb_per_s, constants.here_us, constants.workers_us]
    done = subprocess.run([program, *map(str, costs), str(GPUS), str(calls), *shapes], capture_output=True, text=True,
                          timeout=SIMULATION_LIMIT_S, check=False)  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stderr.strip()}")
    return dict(zip(shapes, json_lines(done.stdout)))


def simulate(program, constants, rows, number):
    """Adds the simulated times to the rows, and what the code of the master took here."""
    shapes = {"star": lambda row: str(row["nodes"]), "tree": lambda row: f"{row['nodes']}:{row['fan_out']}"}
    calls = simulated(program, constants, [shape_of(row) for row in rows for shape_of in shapes.values()],
                      number)  # fmt: skip
    for row in rows:
        for name, shape_of in shapes.items():
            call = calls[shape_of(row)]
            row[f"simulated_{name}_us"] = call["us"]
            row[f"{name}_code_us"] = [call["send_code_us"], call["take_code_us"]]


def faults_of(program, constants, rows):
    """What --check finds wrong."""
    trees = [(nodes, fan_out) for nodes in NODES for fan_out in CHECKED_FAN_OUTS if fan_out < nodes - 1]
    calls = simulated(program, constants, [f"{nodes}:{fan_out}" for nodes, fan_out in trees], 2)
    compared = [(f"{nodes} nodes, fan-out {fan_out}", tree_us(constants, nodes, fan_out), call["us"])
                for (nodes, fan_out), call in zip(trees, calls.values())]  # fmt: skip
    for shape in ("star", "tree"):
        compared += [(f"{row['nodes']} nodes, {shape}", row[f"{shape}_us"], row[f"simulated_{shape}_us"])
                     for row in rows]  # fmt: skip
    faults = [f"{constants.name}, {what}: {time:.1f} us simulated, {model:.1f} us expected"
              for what, model, time in compared if abs(time / model - 1) > MOST_DIFFERENCE]  # fmt: skip
    farthest = max(abs(time / model - 1) for _, model, time in compared)
    print(f"{constants.name}: {len(compared)} simulated calls are within {farthest * 100:.1f} % of the model")
    for row in rows:
        if row["nodes"] >= constants.tree_wins_from and row["simulated_tree_us"] >= row["simulated_star_us"]:
            faults.append(f"{constants.name}: the tree does not win over {row['nodes']} nodes")
    return faults


# ---- constants of this machine


def figures_of(command, hosts=None):
    options = {"timeout": RUN_LIMIT_S, "text": True, "capture_output": True}
    done = hosts.run("n1", command, timeout=RUN_LIMIT_S) if hosts else subprocess.run(command, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return list(json_lines(done.stdout))[-1]


def measured(build, rounds):
    sys.path.insert(0, str(ROOT / "tests/nodes"))
    from engines import ENGINES  # noqa: PLC0415
    from hosts import Hosts, why_impossible  # noqa: PLC0415

    if reason := why_impossible():
        sys.exit(f"no hosts: {reason}; use --constants")
    names = ("bench_empty_call", "mpi_costs")
    programs = {name: find_executable(build, name) for name in names}
    if missing := [name for name in names if programs[name] is None]:
        sys.exit(f"not found in {build}: {', '.join(missing)}")
    with Hosts(2, keep=[build]) as hosts:
        command = ENGINES["openmpi"].command(hosts, 2, [programs["mpi_costs"]])
        runs = [figures_of(command, hosts) for _ in range(rounds)]
    calls = [figures_of([programs["bench_empty_call"], "--workers", "2"])["median_us"] for _ in range(rounds)]
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    here_us = statistics.median(calls)
    overhead_us = (median["sender_us"] + median["receiver_us"]) / 2
    print(f"measured, median of {rounds} runs: {json.dumps(median)}, empty call on one node {here_us:.2f} us")
    return Constants("measured", f"measured over two hosts of this machine: {machine()['cpu']}", here_us=here_us,
                     overhead_us=overhead_us, latency_us=max(0, median["one_way_us"] - 2 * overhead_us),
                     workers_us=here_us, gb_per_s=median["gb_per_s"], tree_wins_from=NODES[-1] + 1)  # fmt: skip


def constants_of(name, arguments):
    if name == "measured":
        if arguments.build is None:
            sys.exit("--constants measured requires --build")
        return measured(arguments.build.resolve(), arguments.rounds)
    if name in KNOWN:
        return KNOWN[name]
    return Constants(**{"name": Path(name).stem, "source": "given", **json.loads(Path(name).read_text())})


# ---- tables


def print_table(header, lines):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def print_rows(constants, rows):
    values = dataclasses.asdict(constants)
    fields = ("here_us", "overhead_us", "latency_us", "workers_us", "gb_per_s", "rails", "gpu_gb_per_s")
    print(f"{constants.name} ({constants.source}): " + ", ".join(f"{name} {values[name]:g}" for name in fields))
    print(f"The tree is faster from {first_better_tree(constants)} nodes on.\n")
    print_table(
        ("nodes", "star, us", "tree, us", "fan-out", "fresh 64 MiB for each GPU, ms", "all_reduce of 100 MB, ms"),
        [(str(row["nodes"]), f"{row['star_us']:.1f}", f"{row['tree_us']:.1f}", str(row["fan_out"]),
          f"{row['fresh_ms']:,.0f}", "{:.2f} to {:.2f}".format(*row["all_reduce_ms"])) for row in rows])  # fmt: skip
    if "simulated_star_us" not in rows[0]:
        return
    lines = []
    for row in rows:
        line = [str(row["nodes"])]
        for shape in ("star", "tree"):
            time = row[f"simulated_{shape}_us"]
            line += [f"{time:.1f}", f"{time / row[f'{shape}_us']:.2f}", f"{time / row[f'simple_{shape}_us']:.2f}"]
        line += ["{:.1f} + {:.1f}".format(*row["star_code_us"])]
        lines.append(line)
    print_table(("nodes", "star simulated, us", "by the model", "by the simple formula", "tree simulated, us",
                 "by the model", "by the simple formula", "code of the master here, us"), lines)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, help="a build folder: for measured constants and for the simulation")
    parser.add_argument("--constants", action="append", metavar="measured|tcp|infiniband|FILE")
    parser.add_argument("--simulate", type=Path, metavar="PROGRAM", help="simulate_nodes, if it is not in --build")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here; plot_results.py draws them")
    parser.add_argument("--check", action="store_true", help="fail if the simulation does not agree with the model")
    parser.add_argument("--calls", type=int, default=64,
                        help="simulated for each shape; after 32, a call finds its memory in use (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="of the measurement")
    arguments = parser.parse_args()
    program = arguments.simulate or (arguments.build and find_executable(arguments.build, "simulate_nodes"))
    if arguments.check and not program:
        sys.exit("--check requires --build or --simulate")
    results, faults = [], []
    for name in arguments.constants or ["measured"]:
        constants = constants_of(name, arguments)
        rows = rows_of(constants)
        if program:
            simulate(program, constants, rows, arguments.calls)
        print_rows(constants, rows)
        if arguments.check:
            faults += faults_of(program, constants, rows)
        results.append({"constants": dataclasses.asdict(constants), "rows": rows,
                        "tree_is_faster_from": first_better_tree(constants)})  # fmt: skip
    if arguments.json:
        content = {"commit": commit(), "machine": machine(), "models": results}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if arguments.check and faults else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Measures an empty call with Python's multiprocessing.Barrier.

The master and the workers enter one barrier before a call and another after it. Synkhronos does this for each call of a
function.

    python_barrier.py --workers 2 --seconds 1
"""

import argparse
import json
import math
import multiprocessing
import time

WARM_UP_CALLS = 50
DEADLINE_S = 60


def serve(barrier_in, barrier_out, stop):
    while True:
        barrier_in.wait(DEADLINE_S)
        if stop.value:
            return
        barrier_out.wait(DEADLINE_S)


def percentile(ordered, p):
    return ordered[max(math.ceil(p / 100 * len(ordered)), 1) - 1]


def measure(workers, seconds):
    context = multiprocessing.get_context("fork")
    barrier_in, barrier_out = context.Barrier(workers + 1), context.Barrier(workers + 1)
    stop = context.Value("b", 0, lock=False)
    processes = [
        context.Process(target=serve, args=(barrier_in, barrier_out, stop), daemon=True) for _ in range(workers)
    ]
    for process in processes:
        process.start()

    def call():
        barrier_in.wait(DEADLINE_S)
        barrier_out.wait(DEADLINE_S)

    for _ in range(WARM_UP_CALLS):
        call()
    samples_us = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(samples_us) < 10:
        start = time.perf_counter_ns()
        call()
        samples_us.append((time.perf_counter_ns() - start) / 1e3)
    stop.value = 1
    barrier_in.wait(DEADLINE_S)
    for process in processes:
        process.join(DEADLINE_S)
    return sorted(samples_us)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    samples_us = measure(options.workers, options.seconds)
    print(json.dumps({
        "name": "empty_call",
        "impl": "python_barrier",
        "workers": options.workers,
        "median_us": round(percentile(samples_us, 50), 3),
        "p10_us": round(percentile(samples_us, 10), 3),
        "p90_us": round(percentile(samples_us, 90), 3),
        "samples": len(samples_us),
    }))


if __name__ == "__main__":
    main()

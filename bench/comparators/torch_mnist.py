"""Code that the PyTorch programs of the MNIST step share: the data, the transfer of rows to the GPU, the measurement of
steps, and the printed line. torchrun starts the programs, with one process per GPU.
"""

import contextlib
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist

ROWS, FEATURES, CLASSES = 60_000, 784, 10
WIDTHS = (FEATURES, 800, 800, CLASSES)
LEARNING_RATE, MOMENTUM = 0.1, 0.9
WARM_UP_STEPS = 30
STEPS_PER_BLOCK = 20  # the program waits for the GPU once per block
# The exceptions of PyTorch if a setting does not work on this machine or in this version.
FAILURES = (RuntimeError, AssertionError, ValueError, TypeError, AttributeError, KeyError, ImportError, OSError)


def numbers(text):
    return [int(part) for part in text.split(",")]


def add_options(parser):
    parser.add_argument("--batch", type=numbers, default=[500], help="global batches, comma-separated: 500,4000")
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["float32"], help="float32,tf32")
    parser.add_argument("--steps", type=int, default=300)


class World:
    """The position of this process among the others. A single process has no process group."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(self.device)
        self.cores = max(1, len(os.sched_getaffinity(0)) // self.size)
        if self.size > 1:
            dist.init_process_group("nccl", device_id=self.device)

    def barrier(self):
        torch.cuda.synchronize()
        if self.size > 1:
            dist.barrier(device_ids=[self.device.index])
            torch.cuda.synchronize()

    def slowest(self, seconds):
        """Returns the largest number of all ranks, on every rank, so that all of them make the same choice."""
        if self.size == 1:
            return seconds
        slowest = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.item()

    def close(self):
        if self.size > 1:
            dist.destroy_process_group()


def set_dtype(dtype):
    # Sets the precision of float32 matrix products, in cuBLAS and in code that torch.compile generates.
    torch.set_float32_matmul_precision({"float32": "highest", "tf32": "high"}[dtype])


def make_data():
    """Makes as many rows as MNIST has, of the same size, and the same on every rank. As in MNIST, four fifths of the
    pixels are zero. The labels can be learnt, so a falling loss shows that the step is correct."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(ROWS, FEATURES, generator=generator)
    pixels *= torch.rand(ROWS, FEATURES, generator=generator) < 0.2
    labels = (pixels @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(dim=1)
    return pixels, labels


class Feeder:
    """Moves shuffled rows to the GPU. index_select writes directly into pinned memory. Pixels and labels are next to
    each other there, so one copy moves both. There are two pinned buffers, so that rows can be gathered while others
    are still being copied."""

    def __init__(self, world, data, batch):
        self.pixels, self.labels = data
        self.rows = batch // world.size  # batches are multiples of 8
        first = world.rank * self.rows
        self.mine = slice(first, first + self.rows)
        self.batch = batch
        self.random = torch.Generator().manual_seed(2)  # the same order on every rank
        self.order, self.at = None, 0
        pixel_bytes, label_bytes = self.rows * FEATURES * 4, self.rows * 8
        pixel_bytes += -pixel_bytes % 256
        self.staged = torch.empty(pixel_bytes + label_bytes, dtype=torch.uint8, device=world.device)
        self.x, self.y = self._views(self.staged, pixel_bytes)
        self.pinned = [torch.empty(pixel_bytes + label_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.views = [self._views(buffer, pixel_bytes) for buffer in self.pinned]
        self.copied = [torch.cuda.Event() for _ in range(2)]
        self.current = 0
        self._choose_threads(world)

    def _views(self, buffer, pixel_bytes):
        pixels = buffer[:self.rows * FEATURES * 4].view(torch.float32).view(self.rows, FEATURES)
        return pixels, buffer[pixel_bytes:].view(torch.int64)

    def _choose_threads(self, world):
        """Chooses the fastest number of threads. torchrun gives each process one thread. For many rows, a thread for
        each core in its share is faster, but not for few rows."""
        times = {}
        for threads in {1, min(4, world.cores), world.cores}:
            torch.set_num_threads(threads)
            samples = []
            for _ in range(15):
                start = time.perf_counter()
                self.gather()
                samples.append(time.perf_counter() - start)
            times[threads] = sorted(samples)[len(samples) // 2]
        torch.set_num_threads(min(times, key=times.get))

    def gather(self):
        """Gathers the next rows into the pinned buffer that is not being copied."""
        if self.order is None or self.at + self.batch > ROWS:
            self.order, self.at = torch.randperm(ROWS, generator=self.random), 0
        indices = self.order[self.at:self.at + self.batch][self.mine]
        self.at += self.batch
        self.current = 1 - self.current
        self.copied[self.current].synchronize()
        pixels, labels = self.views[self.current]
        torch.index_select(self.pixels, 0, indices, out=pixels)
        torch.index_select(self.labels, 0, indices, out=labels)

    def copy(self):
        """Starts the copy of the rows that were gathered last."""
        self.staged.copy_(self.pinned[self.current], non_blocking=True)
        self.copied[self.current].record()


def steps_in_order(feeder, compute):
    """A step gathers its rows, copies them and computes, in this order."""

    def start():
        feeder.gather()
        feeder.copy()
        compute()

    return start


def steps_ahead(feeder, compute):
    """A step gathers the rows of the next step while the GPU computes."""
    feeder.gather()

    def start():
        feeder.copy()
        compute()
        feeder.gather()

    return start


ORDERS = {"in order": steps_in_order, "ahead": steps_ahead}


def percentile(ordered, p):
    return ordered[max(math.ceil(p / 100 * len(ordered)), 1) - 1]


def time_steps(world, start, read_loss, steps):
    """Returns two lists of microseconds per step, and the losses. In the first list, the loss of each step is read
    before the next step. In the second, the program waits only at the end of a block of steps."""
    losses = []
    for _ in range(WARM_UP_STEPS):
        start()
        losses.append(read_loss())
    world.barrier()
    samples = []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        start()
        losses.append(read_loss())
        samples.append((time.perf_counter_ns() - begin) / 1e3)
    world.barrier()
    block_samples = []
    for _ in range(max(5, steps // STEPS_PER_BLOCK)):
        begin = time.perf_counter_ns()
        for _ in range(STEPS_PER_BLOCK):
            start()
        torch.cuda.synchronize()
        block_samples.append((time.perf_counter_ns() - begin) / 1e3 / STEPS_PER_BLOCK)
    world.barrier()
    return sorted(samples), sorted(block_samples), losses


def measure(world, feeder, compute, read_loss, steps, about):
    """Measures each order of gathering and computing, and prints a line for each on rank 0."""
    for order, make_start in ORDERS.items():
        samples, block_samples, losses = time_steps(world, make_start(feeder, compute), read_loss, steps)
        print_line(world, {
            "bench": "mnist_step", **about, "variant": f"{about['variant']}, {order}", "devices": world.size,
            "median_us": round(percentile(samples, 50), 2), "p10_us": round(percentile(samples, 10), 2),
            "p90_us": round(percentile(samples, 90), 2), "median_us_async": round(percentile(block_samples, 50), 2),
            "samples": len(samples), "first_loss": losses[0], "last_loss": losses[-1],
            "torch": torch.__version__,
        })


def print_line(world, line):
    if world.rank == 0:
        print(json.dumps(line), flush=True)


@contextlib.contextmanager
def reported(world, what):
    """Reports a setting that fails, and continues with the others. If it does not fail on every rank, the deadline
    ends the program."""
    try:
        yield
    except FAILURES as error:
        print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        message = (str(error).strip().splitlines() or [""])[0]
        print_line(world, {"bench": "mnist_step", "failed": f"{what}: {type(error).__name__}: {message}"})

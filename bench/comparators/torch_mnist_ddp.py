#!/usr/bin/env python3
"""Measures a training step of MNIST's MLP in PyTorch, as its users write it: with DistributedDataParallel, eager or
through torch.compile.

    torchrun --nproc-per-node 8 torch_mnist_ddp.py --batch 500,4000 --dtype float32,tf32 --mode eager,compile

Rank 0 prints a JSON line for each setting, with the median wall time of a step. A single process does not use DDP,
which would only make it slower.
"""

import argparse
import time

import torch
import torch_mnist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRIAL_STEPS = 40
# The mode reduce-overhead replays CUDA graphs of forward and backward.
COMPILE_MODES = {"compile": None, "compile-graphs": "reduce-overhead"}


def make_model(world):
    torch.manual_seed(3)
    first, second, third, classes = torch_mnist.WIDTHS
    model = nn.Sequential(nn.Linear(first, second), nn.ReLU(), nn.Linear(second, third), nn.ReLU(),
                          nn.Linear(third, classes)).to(world.device)
    if world.size == 1:
        return model
    # The gradients are views of the buckets, so nothing is copied. There are no buffers to broadcast. The graph is the
    # same in each step, so DDP does not search for unused parameters.
    return DistributedDataParallel(model, device_ids=[world.device.index], gradient_as_bucket_view=True,
                                   broadcast_buffers=False, static_graph=True)


def make_step(world, feeder, mode, update):
    """Returns a function for forward, backward and update with the rows that the feeder has copied, and a function that
    reads the loss."""
    model = make_model(world)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch_mnist.LEARNING_RATE, momentum=torch_mnist.MOMENTUM,
                                nesterov=True, **{update: True})

    def whole(x, y):
        return loss_function(model(x), y)

    loss_of = whole
    if mode != "eager" and world.size == 1:
        loss_of = torch.compile(whole, mode=COMPILE_MODES[mode], dynamic=False)  # shapes never change
    elif mode != "eager":
        # The DDP module itself is compiled, as its documentation says. Backward is then split at the buckets.
        forward = torch.compile(model, mode=COMPILE_MODES[mode], dynamic=False)
        compiled_loss = torch.compile(loss_function, mode=COMPILE_MODES[mode], dynamic=False)

        def loss_of(x, y):
            return compiled_loss(forward(x), y)

    loss = None

    def compute():
        nonlocal loss
        if mode == "compile-graphs":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(feeder.x, feeder.y)
        loss.backward()
        optimizer.step()

    return compute, lambda: loss.item()


def seconds_of(world, feeder, step):
    start, read_loss = torch_mnist.steps_in_order(feeder, step[0]), step[1]
    for _ in range(torch_mnist.WARM_UP_STEPS):
        start()
        read_loss()
    world.barrier()
    begin = time.perf_counter()
    for _ in range(TRIAL_STEPS):
        start()
        read_loss()
    return world.slowest(time.perf_counter() - begin)


def measure(world, data, options, mode, batch, dtype):
    torch_mnist.set_dtype(dtype)
    torch.compiler.reset()
    feeder = torch_mnist.Feeder(world, data, batch)
    # SGD has two fast implementations. The machine decides which is faster, so both are tried. They are tried in eager
    # mode, because they are the same with a compiled model.
    trials = {update: seconds_of(world, feeder, make_step(world, feeder, "eager", update))
              for update in ("fused", "foreach")}
    update = min(trials, key=trials.get)
    compute, read_loss = make_step(world, feeder, mode, update)
    torch_mnist.measure(world, feeder, compute, read_loss, options.steps, {
        "impl": "torch_ddp", "mode": mode, "variant": f"{mode}, {update}", "batch": batch, "dtype": dtype})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_mnist.add_options(parser)
    parser.add_argument("--mode", type=lambda text: text.split(","), default=["eager"],
                        help="eager,compile,compile-graphs")
    options = parser.parse_args()
    world = torch_mnist.World()
    data = torch_mnist.make_data()
    for batch in options.batch:
        for dtype in options.dtype:
            for mode in options.mode:
                with torch_mnist.reported(world, f"{mode}, batch {batch}, {dtype}"):
                    measure(world, data, options, mode, batch, dtype)
    world.close()


if __name__ == "__main__":
    main()

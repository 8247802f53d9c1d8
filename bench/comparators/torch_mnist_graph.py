#!/usr/bin/env python3
"""Measures a training step of MNIST's MLP in PyTorch that is carefully optimised by hand. Forward, backward, one
all_reduce of all gradients and the update are captured into one CUDA graph. A step gathers the rows into pinned
memory, copies them, replays the graph and reads the loss.

    torchrun --nproc-per-node 8 torch_mnist_graph.py --batch 500,4000 --dtype float32,tf32 --mode eager,compile

Rank 0 prints a JSON line for each setting, with the median wall time of a step. With the mode "compile", torch.compile
fuses the kernels of forward and backward before they are captured.
"""

import argparse

import torch
import torch.distributed as dist
import torch_mnist
from torch import nn
from torch.nn import functional


def make_parameters(world):
    """Returns one tensor with all parameters, and views of it that autograd treats as separate parameters."""
    torch.manual_seed(3)
    layers = [nn.Linear(i, o) for i, o in zip(torch_mnist.WIDTHS, torch_mnist.WIDTHS[1:], strict=False)]
    values = [p.detach() for layer in layers for p in layer.parameters()]
    flat = torch.cat([v.reshape(-1) for v in values]).to(world.device)
    parts = flat.split([v.numel() for v in values])
    return flat, [part.view_as(v).requires_grad_() for part, v in zip(parts, values, strict=True)]


def loss_of(x, y, parameters):
    w1, b1, w2, b2, w3, b3 = parameters
    x = functional.relu(functional.linear(x, w1, b1))
    x = functional.relu(functional.linear(x, w2, b2))
    return functional.cross_entropy(functional.linear(x, w3, b3), y)


class CapturedStep:
    def __init__(self, world, feeder, mode):
        self.world, self.feeder = world, feeder
        self.flat, self.parameters = make_parameters(world)
        self.loss_of = loss_of if mode == "eager" else torch.compile(loss_of, dynamic=False)
        # The optimizer has only one parameter, so one kernel updates everything.
        self.flat.grad = torch.zeros_like(self.flat)
        self.optimizer = torch.optim.SGD([self.flat], lr=torch_mnist.LEARNING_RATE, momentum=torch_mnist.MOMENTUM,
                                         nesterov=True, fused=True)
        # The graph itself writes the loss to pinned memory. So the program only waits for the stream, and then reads
        # it.
        self.loss = torch.zeros((), pin_memory=True)
        self.stream = torch.cuda.Stream()
        self._warm_up()
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: the rules of a capture apply only to this thread, because NCCL's watchdog thread makes CUDA
        # calls.
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self._work()
        world.barrier()

    def _work(self):
        loss = self.loss_of(self.feeder.x, self.feeder.y, self.parameters)
        # autograd.grad returns the gradients, and one call concatenates them. To accumulate them into views of one
        # tensor would take a kernel for each.
        gradients = torch.autograd.grad(loss, self.parameters)
        torch.cat([g.reshape(-1) for g in gradients], out=self.flat.grad)
        if self.world.size > 1:
            dist.all_reduce(self.flat.grad, op=dist.ReduceOp.AVG)
        self.optimizer.step()
        self.loss.copy_(loss.detach(), non_blocking=True)

    def _warm_up(self):
        """Runs steps before the capture. At their first use, libraries, the communicator and torch.compile make calls
        that cannot be captured."""
        self.feeder.gather()
        self.feeder.copy()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(5):
                self._work()
        self.world.barrier()

    def compute(self):
        self.graph.replay()

    def read_loss(self):
        torch.cuda.current_stream().synchronize()
        return float(self.loss)


def measure(world, data, options, mode, batch, dtype):
    torch_mnist.set_dtype(dtype)
    torch.compiler.reset()
    feeder = torch_mnist.Feeder(world, data, batch)
    step = CapturedStep(world, feeder, mode)
    torch_mnist.measure(world, feeder, step.compute, step.read_loss, options.steps, {
        "impl": "torch_graph", "mode": mode, "variant": mode, "batch": batch, "dtype": dtype})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_mnist.add_options(parser)
    parser.add_argument("--mode", type=lambda text: text.split(","), default=["eager"], help="eager,compile")
    options = parser.parse_args()
    world = torch_mnist.World()
    data = torch_mnist.make_data()
    for batch in options.batch:
        for dtype in options.dtype:
            for mode in options.mode:
                with torch_mnist.reported(world, f"graph {mode}, batch {batch}, {dtype}"):
                    measure(world, data, options, mode, batch, dtype)
    world.close()


if __name__ == "__main__":
    main()

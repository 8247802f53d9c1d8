#!/usr/bin/env python3
"""Measures a training step of the models of bench_gpt_step in PyTorch: the same modules, fused attention, bfloat16 by
autocast, fused AdamW, and DistributedDataParallel if there is more than one GPU. The modes are eager, torch.compile, and
torch.compile with reduce-overhead, which replays CUDA graphs.

    torchrun --nproc-per-node 2 torch_gpt.py --model gpt2 --rows 32,8 --mode eager,compile

With --device cpu, the processes share the cores, each process is pinned to its own, and DDP uses gloo. All rows are
already on the device. Rank 0 prints a JSON line for each setting, with the median time of a step over five
samples. "gib" is the memory in use on the GPU of rank 0, for all settings up to this one. "first_step_s" is the time from
BENCH_STARTED_NS, a variable, until the first step was made.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_mnist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

COMPILE_MODES = {"compile": None, "reduce-overhead": "reduce-overhead"}
WARM_UP_STEPS = 8
# Layers, width, heads, vocabulary, context.
SIZES = {"tiny": (2, 64, 4, 256, 64), "small": (4, 128, 4, 256, 128), "medium": (6, 256, 4, 256, 128),
         "gpt2": (12, 768, 12, 50304, 1024), "1.64b": (48, 1600, 25, 50304, 1024),
         "6.86b": (32, 4096, 32, 50304, 2048)}
MLP_WIDTHS = {"mlp": 800, "mlp_small": 128}
FEATURES, CLASSES = 784, 10


class CpuWorld:
    """torch_mnist.World for CPUs."""

    def __init__(self):
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cpu")
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // self.size
        os.sched_setaffinity(0, cores[self.rank * share:(self.rank + 1) * share])
        torch.set_num_threads(share)
        if self.size > 1:
            dist.init_process_group("gloo")

    def barrier(self):
        if self.size > 1:
            dist.barrier()

    def close(self):
        if self.size > 1:
            dist.destroy_process_group()


def wait_for(world):
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def used_gib(world):
    if world.device.type == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / 2**30, 2)


def allocated_gib(world):
    """The most memory of tensors at a time."""
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if world.device.type == "cuda" else 0


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, time_steps, width = x.shape
        q, k, v = (part.view(rows, time_steps, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, time_steps, width)
        y = x + self.attn_proj(mixed)
        return y + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(y)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, context):
        super().__init__()
        self.is_recomputed = False
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, rows):
        tokens, targets = rows[:, :-1], rows[:, 1:]
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.is_recomputed else block(x)
        scores = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.reshape(-1))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                    nn.Linear(width, CLASSES))

    def forward(self, x, y):
        return F.cross_entropy(self.layers(x), y)


def make_model(name):
    return Mlp(MLP_WIDTHS[name]) if name in MLP_WIDTHS else Gpt(*SIZES[name])


def tokens_of_row(name):
    return 1 if name in MLP_WIDTHS else SIZES[name][4]


def make_rows(name, count, device):
    """Returns the arguments of the model."""
    if name in MLP_WIDTHS:
        return torch.rand(count, FEATURES, device=device), torch.randint(0, CLASSES, (count,), device=device)
    vocabulary, context = SIZES[name][3:]
    return (torch.randint(0, vocabulary, (count, context + 1), dtype=torch.int32, device=device),)


def shard(model, options):
    """FSDP2: each block is a unit, gathered as bfloat16, and its gradient is reduced as float32."""
    policy = MixedPrecisionPolicy()
    if options.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.h:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def make_step(world, options, mode):
    torch.manual_seed(7)
    with world.device:
        model = raw = make_model(options.model)
    raw.is_recomputed = options.checkpoint_activations
    if options.sharded:
        shard(model, options)
    elif world.size > 1:
        devices = [world.device.index] if world.device.type == "cuda" else None
        model = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    if mode == "compile" and options.sharded:
        for block in raw.h:  # as PyTorch's own trainer does: the gathers stay outside of what is compiled
            block.compile(dynamic=False)
    elif mode != "eager":
        model = torch.compile(model, mode=COMPILE_MODES[mode], dynamic=False)
    optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step(*rows):
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        is_mixed = options.dtype == "bfloat16" and not options.sharded
        with torch.autocast(world.device.type, dtype=torch.bfloat16, enabled=is_mixed):
            loss = model(*(each.long() if each.dtype == torch.int32 else each for each in rows))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


class FirstStep:
    """The time from the start of the command to the end of the first step."""

    def __init__(self):
        self.seconds = None

    def note(self, world):
        if self.seconds is None:
            wait_for(world)
            self.seconds = round(time.time() - int(os.environ.get("BENCH_STARTED_NS", time.time_ns())) / 1e9, 2)


def measure(world, options, mode, first):
    step = make_step(world, options, mode)
    for count in options.rows:
        rows = make_rows(options.model, count, world.device)
        for _ in range(WARM_UP_STEPS):
            loss = step(*rows)
            first.note(world)
        world.barrier()
        samples = []
        for _ in range(5):
            wait_for(world)
            begin = time.perf_counter()
            for _ in range(options.steps):
                loss = step(*rows)
            wait_for(world)
            samples.append((time.perf_counter() - begin) / options.steps * 1e6)
        world.barrier()
        median_us = statistics.median(samples)
        torch_mnist.print_line(world, {
            "bench": "gpt_step", "impl": "torch_fsdp" if options.sharded else "torch_ddp",
            "variant": mode + ("_recomputed" if options.checkpoint_activations else ""), "devices": world.size, "model": options.model,
            "rows": count, "dtype": options.dtype, "median_us": round(median_us, 1), "min_us": round(min(samples), 1),
            "max_us": round(max(samples), 1),
            "tokens_per_s": round(count * world.size * tokens_of_row(options.model) / median_us * 1e6),
            "gib": used_gib(world), "allocated_gib": allocated_gib(world), "first_step_s": first.seconds, "last_loss": loss.item(),
            "torch": torch.__version__})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted([*SIZES, *MLP_WIDTHS]), default="small")
    parser.add_argument("--rows", type=torch_mnist.numbers, default=[64], help="rows per GPU, comma-separated")
    parser.add_argument("--mode", type=lambda text: text.split(","), default=["eager"],
                        help="eager,compile,reduce-overhead")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=20, help="per sample")
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    parser.add_argument("--checkpoint-activations", action="store_true", help="of each block")
    options = parser.parse_args()
    world = torch_mnist.World() if options.device == "cuda" else CpuWorld()
    first = FirstStep()
    for mode in options.mode:
        torch.compiler.reset()
        with torch_mnist.reported(world, f"{options.model}, {mode}"):
            measure(world, options, mode, first)
    world.close()


if __name__ == "__main__":
    main()

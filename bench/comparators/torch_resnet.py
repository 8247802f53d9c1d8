#!/usr/bin/env python3
"""Measures a training step of ResNet-50 in PyTorch with the usual optimisations: channels last, bfloat16 by autocast,
fused SGD with momentum, and DistributedDataParallel with a static graph if there is more than one GPU. The modes are
eager, torch.compile, and torch.compile with reduce-overhead, which replays CUDA graphs.

    torchrun --nproc-per-node 8 torch_resnet.py --batch 256,32 --mode eager,compile,reduce-overhead

The batch of each GPU is already on the GPU and does not change, so nothing is loaded. Rank 0 prints a JSON line for
each setting, with the median time of a step over five samples.
"""

import argparse
import statistics
import time

import torch
import torch_mnist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 1000
COMPILE_MODES = {"compile": None, "reduce-overhead": "reduce-overhead"}
WARM_UP_STEPS = 8


class Bottleneck(nn.Module):
    def __init__(self, channels_in, width, channels_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels_out))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet50(nn.Sequential):
    """ResNet-50, version 1.5, as in torchvision. Does not require torchvision."""

    def __init__(self):
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                  nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(channels, 64 << stage, 256 << stage, stride))
                channels = 256 << stage
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def make_step(world, mode, batch):
    torch.manual_seed(1)
    model = ResNet50().to(world.device, memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device=world.device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (batch,), device=world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
    if world.size > 1:
        model = DistributedDataParallel(model, device_ids=[world.device.index], gradient_as_bucket_view=True,
                                        broadcast_buffers=False, static_graph=True)
    if mode != "eager":
        model = torch.compile(model, mode=COMPILE_MODES[mode], dynamic=False)
    loss_function = nn.CrossEntropyLoss()

    def step():
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def measure(world, options, mode, batch):
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    step = make_step(world, mode, batch)
    for _ in range(WARM_UP_STEPS):
        loss = step()
    world.barrier()
    samples = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(options.steps):
            loss = step()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - begin) / options.steps * 1e6)
    world.barrier()
    median_us = statistics.median(samples)
    torch_mnist.print_line(world, {
        "bench": "resnet_step", "impl": "torch_ddp", "variant": mode, "devices": world.size, "batch": batch,
        "dtype": "bfloat16", "median_us": round(median_us, 1), "images_per_s": round(batch * world.size / median_us * 1e6, 1),
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2), "last_loss": loss.item(), "torch": torch.__version__})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=torch_mnist.numbers, default=[256], help="rows per GPU, comma-separated")
    parser.add_argument("--mode", type=lambda text: text.split(","), default=["eager"],
                        help="eager,compile,reduce-overhead")
    parser.add_argument("--steps", type=int, default=20, help="per sample")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    world = torch_mnist.World()
    for batch in options.batch:
        for mode in options.mode:
            with torch_mnist.reported(world, f"{mode}, batch {batch}"):
                measure(world, options, mode, batch)
    world.close()


if __name__ == "__main__":
    main()

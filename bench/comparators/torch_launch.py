#!/usr/bin/env python3
"""Measures a launch: a minimal program with DistributedDataParallel, which prints when it has its first result.

    torchrun --nproc-per-node 8 torch_launch.py
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(device), device_ids=[device.index])
    model(torch.full((WIDTH, WIDTH), 0.5, device=device)).sum().backward()
    devices = torch.ones(1, device=device)
    dist.all_reduce(devices)
    gradient = model.module.weight.grad[0, 0].item()  # waits for the whole step
    if devices.item() != dist.get_world_size() or gradient == 0:
        raise RuntimeError("the first step gave a wrong result")
    if dist.get_rank() == 0:
        # The process that started this program can read this clock too.
        print(json.dumps({"bench": "gpu_launch", "impl": "torchrun", "devices": dist.get_world_size(),
                          "what": "first step", "result_at_ns": time.monotonic_ns()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

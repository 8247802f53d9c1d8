#!/usr/bin/env python3
"""Compares ResNet-50 and GPT-2 of Python with the same weights in C++ (python_logits.cpp), in both directions.

usage: python_models.py make FOLDER     writes weights in several formats, inputs, and Python's outputs
       syncrun -n 2 build/release/tests/libtorch/python_logits FOLDER    loads and compares them, and saves the modules
       python_models.py check FOLDER    loads what C++ saved, and compares the outputs

Requires torch, torchvision, transformers and safetensors, 3 GB on the disk, and no network: the weights are random.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torchvision.models import resnet50
from transformers import GPT2Config, GPT2LMHeadModel

TOLERANCE = 1e-5  # of the largest output
ROWS = 4
TOKENS = 32


class Logits(torch.nn.Module):
    """GPT-2 whose only output is the scores, as torch.jit.trace requires."""

    def __init__(self, net: GPT2LMHeadModel) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.net(tokens, use_cache=False).logits


def models() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    """Each model in evaluation mode, with its inputs."""
    torch.manual_seed(1)
    resnet = resnet50()
    with torch.no_grad():
        for module in resnet.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.num_batches_tracked.fill_(3)
    gpt = GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))
    images = torch.randn(ROWS, 3, 224, 224)
    tokens = torch.randint(0, gpt.config.vocab_size, (ROWS, TOKENS))
    return {"resnet50": (resnet.eval(), images), "gpt2": (gpt.eval(), tokens)}


def outputs(net: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result = net(inputs)
    return (result if isinstance(result, torch.Tensor) else result.logits).reshape(ROWS, -1).contiguous()


def make(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, (net, inputs) in models().items():
        save_file({"inputs": inputs, "outputs": outputs(net, inputs)}, folder / f"{name}_rows.safetensors")
        torch.save(net.state_dict(), folder / f"{name}.pt")
        wrapped = {f"module.{key}": value for key, value in net.state_dict().items()}
        torch.save({"model": wrapped, "optimizer": {}, "epoch": 1}, folder / f"{name}_checkpoint.pt")
        if isinstance(net, GPT2LMHeadModel):
            net.save_pretrained(folder / name, max_shard_size="200MB")
            torch.jit.trace(Logits(net), inputs, check_trace=False).save(str(folder / f"{name}_script.pt"))
        else:
            torch.jit.script(net).save(str(folder / f"{name}_script.pt"))


def compare(what: str, found: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference = ((found - wanted).abs().max() / wanted.abs().max()).item()
    print(f"{what}: differs by {difference:.1e} of the largest output")
    return difference <= TOLERANCE


def check(folder: Path) -> bool:
    is_good = True
    for name, (net, inputs) in models().items():
        wanted = load_file(folder / f"{name}_rows.safetensors")["outputs"]
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        # A tied tensor is in the file once.
        missing, unexpected = net.load_state_dict(load_file(folder / f"{name}_saved.safetensors"), strict=False)
        print(f"{name}: missing {missing}, unexpected {unexpected}")
        is_good = is_good and not unexpected and missing in ([], ["lm_head.weight"])
        is_good = compare(f"{name} saved by C++", outputs(net, inputs), wanted) and is_good
        script = torch.jit.load(str(folder / f"{name}_script_saved.pt"), map_location="cpu").eval()
        is_good = compare(f"{name} saved by C++ as TorchScript", outputs(script, inputs), wanted) and is_good
    return is_good


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    elif not check(Path(sys.argv[2])):
        sys.exit("the outputs differ")

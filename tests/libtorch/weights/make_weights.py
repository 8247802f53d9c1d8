#!/usr/bin/env python3
"""Writes the files in this folder, which the tests of load() read.

usage: make_weights.py FOLDER    with FOLDER the version of PyTorch, such as 2.11

The files in 1.13 and 2.11 were made by these versions. Sharded safetensors are written only if the library safetensors
is installed. Element k of tensor i of the state_dict is (10 i + k) / 8, so that the tests know all values.
"""

import collections
import json
import sys
import zipfile
from pathlib import Path

import torch
from torch import nn


class Model(nn.Module):
    """The model of tests/libtorch/module_files_test.cpp, with attributes that are no parameters or buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.1)
        self.frozen = nn.Linear(3, 2)
        self.scale = 1.0
        self.names = ["a", "b"]
        self.table = {"x": 1}
        self.plain = torch.zeros(2)
        self.listed = [torch.ones(2), torch.ones(3)]
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.drop(self.norm(self.first(x)))) * self.scale + self.plain * self.listed[0]


def known_model() -> Model:
    model = Model()
    with torch.no_grad():
        for i, tensor in enumerate(model.state_dict().values()):
            tensor.copy_(((torch.arange(tensor.numel()) + 10 * i) / 8).reshape(tensor.shape))
    return model


def save_as_from_gpu(value: object, file: Path) -> None:
    """Saves a file that says that its tensors were on a GPU."""
    location_tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:0"
    torch.save(value, file)
    torch.serialization.location_tag = location_tag


def save_script(model: Model, file: Path) -> None:
    """Saves TorchScript without its debugging information, which has paths of this machine."""
    whole = file.with_suffix(".whole")
    torch.jit.script(model).save(str(whole))
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(file, "w") as shorter:
        for record in archive.infolist():
            if not record.filename.endswith(".debug_pkl"):
                plain = zipfile.ZipInfo(record.filename.replace(f"{whole.stem}/", f"{file.stem}/", 1))
                shorter.writestr(plain, archive.read(record), record.compress_type)
    whole.unlink()


class Code:
    """Unpickled in Python, it calls a function."""

    def __reduce__(self) -> tuple:
        return (print, ("code of a pickle",))


def save_sharded(state: dict, folder: Path) -> None:
    from safetensors.torch import save_file

    names = list(state)
    shards = {"model-00001-of-00002.safetensors": names[:4], "model-00002-of-00002.safetensors": names[4:]}
    for file, of_shard in shards.items():
        save_file({name: state[name].contiguous() for name in of_shard}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, all in shards.items() for name in all}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index) + "\n")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    model = known_model()
    state = model.state_dict()
    torch.save(state, folder / "state_dict.pt")
    optimizer = torch.optim.Adam(model.parameters())
    model.first(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.load_state_dict(known_model().state_dict())
    checkpoint = {
        "state": {"model": collections.OrderedDict((f"module.{name}", tensor) for name, tensor in state.items())},
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": 0.5,
        "large": 1 << 80,
        "shape": torch.Size([2, 3]),
        "type": torch.float32,
        "device": torch.device("cpu"),
        "labels": {1, 2},
    }
    save_as_from_gpu(checkpoint, folder / "checkpoint.pt")
    values = torch.arange(12.0).reshape(3, 4)
    kinds = {
        "transposed": values.t(),
        "part": values[1:, 2:],
        "expanded": torch.ones(2).expand(3, 2),
        "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "bfloat16": values.to(torch.bfloat16),
        "float16": values.half(),
        "float64": values.double(),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(values),
        "sparse": torch.eye(2).to_sparse(),
        "complex": torch.zeros(2, dtype=torch.complex64),
    }
    torch.save(kinds, folder / "kinds.pt")
    torch.save({"weight": values, "other": Code()}, folder / "code.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    save_script(model, folder / "script.pt")
    try:
        save_sharded(state, folder)
    except ImportError:
        print("safetensors is not installed: no sharded files")


if __name__ == "__main__":
    main()

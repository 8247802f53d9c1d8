#!/usr/bin/env python3
"""Writes the results of torchvision's residual networks as .npy files, so that tests can compare ours with them.

usage: resnet_reference.py FOLDER                     small networks, for the tests: FOLDER/<case>/*.npy, a few values
                                                      of each gradient (tests/demos/resnet/references holds them)
       resnet_reference.py FOLDER --full [options]    one network with all its values: params, statistics (before the
                                                      step), images, labels, logits (evaluation), training_logits,
                                                      gradient, moved_statistics, losses (of ten steps)
       resnet_reference.py FOLDER --distances [...]   after one of the former: adds the distances of torch's own float32
                                                      from these results (float32_distances.npy), and of bfloat16 by
                                                      autocast from that float32 (autocast_distances.npy). These are
                                                      relative distances of logits, loss and gradient, on a GPU if torch
                                                      has one. With --full, it also adds the distances of the gradient
                                                      of each parameter array (float32_array_distances.npy)

Arrays have the layout of demos/resnet/network/architecture.hpp: filters are [out, height, width, in], each parameter
array starts at a multiple of 16 elements, and images are [rows, height, width, 3]. Weights, statistics, images and
labels come from a closed formula, uniform_at(), which tests/demos/resnet/reference.cpp also has. The script computes in
float64 and writes float32. It requires torch. The networks are torchvision's if torchvision is installed, otherwise
those of resnet_modules.py. The file networks.txt says which, with the versions.
"""

import argparse
import contextlib
import math
import sys
from pathlib import Path
from typing import NamedTuple

try:
    import numpy as np
    import torch
except ImportError as error:
    sys.exit(f"error: {error}: install torch and numpy (Debian and Ubuntu: python3-torch)")
try:
    import torchvision
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
    NETWORKS = f"torchvision {torchvision.__version__}"
except (ImportError, RuntimeError, AttributeError) as error:  # the last two if torchvision does not fit this torch
    from resnet_modules import BasicBlock, Bottleneck, ResNet
    NETWORKS = f"demos/resnet/tools/resnet_modules.py (torchvision cannot be imported: {error})"

DEPTHS = {
    18: (BasicBlock, [2, 2, 2, 2]), 34: (BasicBlock, [3, 4, 6, 3]), 50: (Bottleneck, [3, 4, 6, 3]),
    101: (Bottleneck, [3, 4, 23, 3]), 152: (Bottleneck, [3, 8, 36, 3]),
}
ALIGNMENT = 16
LABEL_SMOOTHING = 0.1
RATE, MOMENTUM, STEPS = 0.02, 0.9, 10
SAMPLES, PROJECTIONS = 64, 8
ZERO_GRADIENT = 1e-12  # if an array's part of the whole gradient is smaller than this, it is only rounding of float64
# The places at which the draws of each kind begin. Those of the parameters begin at 0.
STATISTICS_DRAWS, PROJECTION_DRAWS, IMAGE_DRAWS = 1 << 40, 1 << 44, 1 << 48


class Case(NamedTuple):
    depth: int
    width: int
    image_size: int
    classes: int
    rows: int


CASES = {"resnet18": Case(18, 16, 64, 7, 8), "resnet50": Case(50, 8, 64, 5, 6)}


def uniform_at(first: int, count: int) -> np.ndarray:
    """Returns float64 numbers in [-1, 1) with 24 bits each, for the places from `first` on. They come from the
    finalizer of splitmix64 (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
    figure 16)."""
    bits = (np.arange(count, dtype=np.uint64) + np.uint64(first + 1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1


def center_and_spread(name: str, shape: tuple) -> tuple:
    """Returns center and spread of an array. Its values are center + spread * uniform."""
    if name.endswith("running_var"):
        return 1.0, 0.5
    if name.endswith(("running_mean", "fc.bias")):
        return 0.0, 0.1
    if name == "fc.weight":
        return 0.0, math.sqrt(3 / shape[1])
    if len(shape) == 4:
        return 0.0, math.sqrt(6 / math.prod(shape[1:]))
    # These values make the network well conditioned: blocks add little to their shortcuts, and rounding changes the
    # sign of few values. Float32 of torchvision itself is then within 1e-4 of these gradients. With other values, it is
    # not even within 1e-2.
    if name.endswith("bias"):
        return 0.2, 0.2
    return (1.0, 0.25) if "downsample" in name else (0.3, 0.1)


def values_at(first: int, name: str, shape: tuple) -> np.ndarray:
    center, spread = center_and_spread(name, shape)
    return (center + spread * uniform_at(first, math.prod(shape))).astype(np.float32).reshape(shape)


class Array(NamedTuple):
    """An array of the network, with its place in our vectors and with our shape."""
    name: str
    is_statistic: bool
    offset: int
    shape: tuple

    def size(self) -> int:
        return math.prod(self.shape)

    def initial(self) -> np.ndarray:
        return values_at(self.offset + (STATISTICS_DRAWS if self.is_statistic else 0), self.name, self.shape)


def to_ours(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


def to_theirs(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor


def build(case: Case) -> ResNet:
    """Builds torchvision's network. Its class supports one width only. For another width, this makes the layers
    again, with the class's own _make_layer."""
    block, blocks = DEPTHS[case.depth]
    model = ResNet(block, blocks, num_classes=case.classes)
    if case.width != 64:
        model.inplanes = case.width
        model.conv1 = torch.nn.Conv2d(3, case.width, kernel_size=7, stride=2, padding=3, bias=False)
        model.bn1 = torch.nn.BatchNorm2d(case.width)
        for stage, count in enumerate(blocks):
            layer = model._make_layer(block, case.width << stage, count, stride=1 if stage == 0 else 2)
            setattr(model, f"layer{stage + 1}", layer)
        model.fc = torch.nn.Linear((case.width << 3) * block.expansion, case.classes)
    return model.double()


def arrays_of(model: ResNet) -> list:
    arrays, parameters, statistics = [], 0, 0
    for name, tensor in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        is_statistic = name.endswith(("running_mean", "running_var"))
        array = Array(name, is_statistic, statistics if is_statistic else parameters, tuple(to_ours(tensor).shape))
        arrays.append(array)
        if is_statistic:
            statistics += array.size()
        else:
            parameters += -(-array.size() // ALIGNMENT) * ALIGNMENT
    return arrays


def initialize(model: ResNet, arrays: list) -> None:
    state = model.state_dict()
    for array in arrays:
        state[array.name].copy_(to_theirs(torch.from_numpy(array.initial())))


def images_of(case: Case) -> np.ndarray:
    shape = (case.rows, case.image_size, case.image_size, 3)
    return (2 * uniform_at(IMAGE_DRAWS, math.prod(shape))).astype(np.float32).reshape(shape)


def labels_of(case: Case) -> np.ndarray:
    return (np.arange(case.rows, dtype=np.int64) * 3 + 1) % case.classes


def flat(arrays: list, is_statistic: bool, tensors: dict) -> np.ndarray:
    """Returns our vector of parameters, gradients or statistics. The gaps between arrays are 0."""
    chosen = [array for array in arrays if array.is_statistic == is_statistic]
    end = chosen[-1].offset + chosen[-1].size()
    vector = np.zeros(end if is_statistic else -(-end // ALIGNMENT) * ALIGNMENT, dtype=np.float32)
    for array in chosen:
        values = to_ours(tensors[array.name].detach()).reshape(-1).numpy()
        vector[array.offset:array.offset + array.size()] = values
    return vector


class Setting(NamedTuple):
    """The element type and the device of a network's computation."""
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    autocasts: bool = False  # to bfloat16

    def inputs(self, case: Case) -> tuple:
        images = to_theirs(torch.from_numpy(images_of(case))).to(self.device, self.dtype)
        return images, torch.from_numpy(labels_of(case)).to(self.device)

    def autocast(self):
        return torch.autocast(self.device, dtype=torch.bfloat16) if self.autocasts else contextlib.nullcontext()


class Step(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor
    gradients: dict


def train_step(model: ResNet, case: Case, setting: Setting = Setting()) -> Step:
    images, labels = setting.inputs(case)
    model.train()
    model.zero_grad()
    with setting.autocast():
        logits = model(images)
    logits = logits if logits.dtype == setting.dtype else logits.to(setting.dtype)
    loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=LABEL_SMOOTHING)
    loss.backward()
    return Step(logits.detach().cpu(), loss.detach().cpu(), {name: p.grad.cpu() for name, p in model.named_parameters()})


def evaluation_logits(model: ResNet, case: Case, setting: Setting = Setting()) -> torch.Tensor:
    model.eval()
    with torch.no_grad(), setting.autocast():
        return model(setting.inputs(case)[0]).cpu()


class Outputs(NamedTuple):
    logits: np.ndarray
    loss: float
    gradients: list  # of each parameter array

    def distances_from(self, other: "Outputs") -> np.ndarray:
        def relative(a: np.ndarray, b: np.ndarray) -> float:
            return np.linalg.norm(a - b) / np.linalg.norm(b)
        return np.array([relative(self.logits, other.logits), abs(self.loss - other.loss) / abs(other.loss),
                         relative(np.concatenate(self.gradients), np.concatenate(other.gradients))])

    def array_distances_from(self, other: "Outputs") -> np.ndarray:
        """Returns the distances as worst_array() of tests/demos/resnet/reference.cpp computes them. For an array that
        is 0 except for rounding of float64, the distance is relative to the whole gradient."""
        norms = np.array([np.linalg.norm(gradient) for gradient in other.gradients])
        whole = np.linalg.norm(norms)
        errors = [np.linalg.norm(a - b) for a, b in zip(self.gradients, other.gradients)]
        return np.array(errors) / np.where(norms > ZERO_GRADIENT * whole, norms, whole)


def outputs_of(case: Case, setting: Setting) -> Outputs:
    model = build(case)
    arrays = arrays_of(model)
    initialize(model, arrays)
    model.to(setting.device, setting.dtype)
    logits = evaluation_logits(model, case, setting).double().numpy()
    step = train_step(model, case, setting)
    return Outputs(logits, step.loss.item(), [step.gradients[array.name].double().reshape(-1).numpy()
                                              for array in arrays if not array.is_statistic])


def write_distances(folder: Path, case: Case) -> tuple:
    """Writes the files of distances. Returns the results of torch in float32 and in float64."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Torch must not round float32 to TF32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    exact = outputs_of(case, Setting())
    single = outputs_of(case, Setting(torch.float32, device))
    half = outputs_of(case, Setting(torch.float32, device, autocasts=True))
    write(folder, float32_distances=single.distances_from(exact), autocast_distances=half.distances_from(single))
    return single, exact


def write_full_distances(folder: Path, case: Case) -> None:
    single, exact = write_distances(folder, case)
    write(folder, float32_array_distances=single.array_distances_from(exact))


def samples_of(gradient: np.ndarray) -> np.ndarray:
    """Returns up to SAMPLES values at even distances, followed by zeros."""
    count = min(gradient.size, SAMPLES)
    samples = np.zeros(SAMPLES, dtype=np.float32)
    samples[:count] = gradient[np.arange(count) * gradient.size // count]
    return samples


def projections_of(gradient: np.ndarray) -> np.ndarray:
    """Returns products with PROJECTIONS random vectors. Their errors give an estimate of the norm of the whole
    error."""
    return np.array([gradient @ uniform_at(PROJECTION_DRAWS * (k + 1), gradient.size) for k in range(PROJECTIONS)])


def write(folder: Path, **arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(values))


def write_networks(folder: Path) -> None:
    """Writes which networks these references are from."""
    (folder / "networks.txt").write_text(f"{NETWORKS}, torch {torch.__version__}\n", encoding="utf-8")


def loss_curve(model: ResNet, arrays: list, case: Case) -> np.ndarray:
    """Returns the losses of training from the beginning, always on the same rows."""
    initialize(model, arrays)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for _ in range(STEPS):
        losses.append(train_step(model, case).loss.item())
        optimizer.step()
    return np.array(losses)


def write_case(folder: Path, case: Case) -> None:
    model = build(case)
    arrays = arrays_of(model)
    initialize(model, arrays)
    logits = evaluation_logits(model, case)
    step = train_step(model, case)
    parameters = [array for array in arrays if not array.is_statistic]
    gradients = [to_ours(step.gradients[array.name]).reshape(-1).numpy() for array in parameters]
    write(folder,
          case=np.array(case, dtype=np.int64),
          logits=logits.numpy().astype(np.float32),
          training_logits=step.logits.numpy().astype(np.float32),
          moved_statistics=flat(arrays, True, model.state_dict()),
          gradient_norms=np.array([np.linalg.norm(gradient) for gradient in gradients]),
          gradient_samples=np.stack([samples_of(gradient) for gradient in gradients]),
          gradient_projections=np.stack([projections_of(gradient) for gradient in gradients]),
          losses=loss_curve(model, arrays, case))
    write_networks(folder)
    lines = [f"{array.name} {' '.join(map(str, array.shape))}\n" for array in arrays]
    (folder / "arrays.txt").write_text("".join(lines), encoding="utf-8")


def write_full(folder: Path, case: Case) -> None:
    model = build(case)
    arrays = arrays_of(model)
    initialize(model, arrays)
    write(folder,
          case=np.array(case, dtype=np.int64),
          params=flat(arrays, False, model.state_dict()),
          statistics=flat(arrays, True, model.state_dict()),
          images=images_of(case),
          labels=labels_of(case),
          logits=evaluation_logits(model, case).numpy().astype(np.float32))
    step = train_step(model, case)
    write(folder,
          training_logits=step.logits.numpy().astype(np.float32),
          gradient=flat(arrays, False, step.gradients),
          moved_statistics=flat(arrays, True, model.state_dict()),
          losses=loss_curve(model, arrays, case))
    write_networks(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true", help="one network with all its values")
    parser.add_argument("--distances", action="store_true", help="of torch's own narrower types, of the same networks")
    full = parser.add_argument_group("with --full")
    full.add_argument("--depth", type=int, default=50, choices=sorted(DEPTHS))
    full.add_argument("--width", type=int, default=64)
    full.add_argument("--image-size", type=int, default=224)
    full.add_argument("--classes", type=int, default=1000)
    full.add_argument("--rows", type=int, default=8)
    given = parser.parse_args()
    if given.full:
        case = Case(given.depth, given.width, given.image_size, given.classes, given.rows)
        (write_full_distances if given.distances else write_full)(given.folder, case)
        return
    for name, case in CASES.items():
        (write_distances if given.distances else write_case)(given.folder / name, case)


if __name__ == "__main__":
    main()

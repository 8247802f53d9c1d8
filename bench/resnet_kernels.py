#!/usr/bin/env python3
"""Shows the time of each kernel in a step of ResNet-50's network, and the time that memory alone would take for it.
Runs bench_resnet_network under Nsight Compute, or reads the output of such a run.

    bench/resnet_kernels.py build/cuda/bench/bench_resnet_network --batch 256
    bench/resnet_kernels.py --csv profile.csv --batch 256

The script counts bytes from the architecture, 2 for each element of an activation. It counts all bytes that a pass has
to read and write, even if a cache saves some of them. Filters are left out (0.2 GB in a step). Kernels take a little
longer under a profiler than in a graph. Prints a table in Markdown, and the roofline: the bytes and operations of an
image, and the time of a step if only one of the two limited it.
"""

import argparse
import csv
import re
import subprocess
import sys
from dataclasses import dataclass, field

BYTES = 2  # of an element
MEMORY = 4.2e12  # the most bytes/s that a kernel can move on an H200, measured with copies
TENSOR_CORES = 989e12  # multiplications and additions of bfloat16 per second, dense: NVIDIA's data sheet of the H200
PROFILER = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none", "--metrics",
            "gpu__time_duration.sum", "--csv", "--page", "raw"]


@dataclass
class Units:
    """The number of elements per row in the outputs of convolutions."""

    stem: int = 0
    inner: list = field(default_factory=list)  # units that end in a ReLU of their own
    ends: list = field(default_factory=list)  # the ends of blocks
    two_sided: list = field(default_factory=list)  # the ends of blocks with a normalised shortcut
    macs: float = 0  # multiplications in a forward pass
    # For all convolutions except the first: the elements that they read and write forward, and those that the gradients
    # of inputs and filters read and write. The last two are the parts of these that belong to the products below.
    forward: int = 0
    backward: int = 0
    products_forward: int = 0
    products_backward: int = 0
    # For products (see has_product in demos/resnet/network/hopper/cuda_product_kernels.hpp): the elements that they
    # read and write forward, the gradients that they read at the ends of blocks, these ends, and those of them with a
    # normalised shortcut.
    product_inputs: list = field(default_factory=list)
    product_outputs: list = field(default_factory=list)
    product_gradients: list = field(default_factory=list)
    product_ends: list = field(default_factory=list)
    product_two_sided: list = field(default_factory=list)


def resnet50():
    units = Units(stem=112 * 112 * 64, macs=112 * 112 * 64 * 147)
    channels, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width, out = 64 << stage, 256 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            small = size // stride
            units.inner += [size * size * width, small * small * width]
            units.ends.append(small * small * out)
            units.macs += size * size * channels * width + small * small * width * (9 * width + out)
            moved = size * size * (channels + 2 * width) + small * small * (2 * width + out)
            units.forward += moved
            units.backward += 2 * moved
            if block == 0:
                units.two_sided.append(small * small * out)
                units.macs += small * small * channels * out
                units.forward += small * small * (channels + out)
                units.backward += small * small * (channels + 2 * out) + size * size * channels
            if width <= 256:
                forward = 2 if block == 0 and stride == 1 else 1  # the last convolution, and that of the shortcut
                units.product_inputs.append(forward * small * small * width)
                units.product_outputs.append(forward * small * small * out)
                units.products_forward += forward * small * small * (width + out)
                if len(units.ends) > 1:
                    units.product_gradients.append(size * size * width)
                    units.product_ends.append(size * size * channels)
                    units.products_backward += size * size * (width + channels)
                    if block == 1:
                        units.product_two_sided.append(size * size * channels)
            channels, size = out, small
    units.macs += channels * 1000
    return units


def passes(units, batch, has_products):
    """Returns the bytes that each kind of kernel reads and writes in all its launches."""
    stem, pooled = units.stem * batch, units.stem * batch // 4
    images = 115 * 115 * 16 * batch  # folded, see demos/resnet/network/cuda/cuda_image_kernels.hpp
    inner, ends, two = (sum(each) * batch for each in (units.inner, units.ends, units.two_sided))
    bit = 1 / 8 / BYTES  # in elements
    elements = {
        "statistics": stem + inner + ends + two,
        "normalise, ReLU": 2 * inner,
        "normalise, add, ReLU": (3 + bit) * ends,
        "pool forward": stem + 1.5 * pooled,
        "sums of gradients, ReLU": 2 * inner,
        "sums of gradients, block": (4 + bit) * ends + two,
        "gradient, ReLU": 3 * inner,
        "gradient, block": 3 * ends + 2 * two,
        # The sums fetch one value for each window. These are in every cache line of the stem's output, so they read all
        # of it.
        "pool backward": 3 * stem + 5 * pooled,
        FORWARD: images + stem + units.forward * batch,
        BACKWARD: images + stem + units.backward * batch,
    }
    if has_products:
        given, gradients, ended, ended_two = (sum(each) * batch for each in (
            units.product_outputs, units.product_gradients, units.product_ends, units.product_two_sided))
        elements["statistics"] -= given + stem
        elements[FORWARD] -= images + stem + units.products_forward * batch
        elements[BACKWARD] -= images + stem + units.products_backward * batch
        elements[STEM] = images + stem
        elements[STEM_FILTER] = images + stem + 2.5 * pooled
        elements["pool backward"] = stem + 2.5 * pooled
        elements[WITH_STATISTICS] = sum(units.product_inputs) * batch + given
        elements["sums of gradients, block"] -= (4 + bit) * ended + ended_two
        elements[WITH_BLOCKS_END] = gradients + (3 + bit) * ended + ended_two
    return {kind: count * BYTES for kind, count in elements.items()}


FORWARD = "convolutions, forward"
BACKWARD = "convolutions, backward"
WITH_STATISTICS = "convolutions with statistics"
STEM = "first convolution with statistics"
STEM_FILTER = "first convolution, backward, with the pool's gradient"
WITH_BLOCKS_END = "convolutions, backward, with sums of gradients, block"
# The kind of a kernel is that of the first part here that occurs in its name.
KINDS = (("stem_statistics_kernel", STEM), ("stem_filter_kernel", STEM_FILTER),
         ("product_statistics_kernel", WITH_STATISTICS), ("product_sums_block_kernel", WITH_BLOCKS_END),
         ("statistics_kernel", "statistics"), ("apply_relu_kernel", "gradient, ReLU"),
         ("apply_block_kernel", "gradient, block"), ("sums_relu_kernel", "sums of gradients, ReLU"),
         ("sums_block_kernel", "sums of gradients, block"), ("pool_forward_kernel", "pool forward"),
         ("pool_sums_kernel", "pool backward"), ("pool_apply_kernel", "pool backward"),
         ("fold_kernel", "images"), ("prepare_kernel", "images"), ("convert_kernel", "parameters and gradients, conversion"))


def kind_of(name, is_backward):
    for part, kind in KINDS:
        if part in name:
            return kind
    if "apply_kernel" in name:  # the second template parameter says what is added
        return "normalise, ReLU" if re.search(r"[ )]\(?0\)?>", name) else "normalise, add, ReLU"
    if "resnet::" in name:
        return "the rest"
    return BACKWARD if is_backward else FORWARD


def durations(lines):
    """Yields the name and the microseconds of each kernel, in order."""
    rows = list(csv.reader(line for line in lines if line.startswith('"')))
    if len(rows) < 3:
        sys.exit("no kernels in the profile: was it a CSV page of raw values?")
    name = rows[0].index("Kernel Name")
    time = next(i for i, title in enumerate(rows[0]) if title.startswith("gpu__time_duration"))
    to_us = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "usecond": 1.0, "nsecond": 1e-3, "msecond": 1e3}[rows[1][time]]
    for row in rows[2:]:
        yield row[name], float(row[time].replace(",", "")) * to_us


def table(lines, batch):
    units = resnet50()
    found = {}
    is_backward = False
    for name, us in durations(lines):
        count, total = found.get(kind := kind_of(name, is_backward), (0, 0.0))
        found[kind] = (count + 1, total + us)
        is_backward |= "loss_sum_kernel" in name
    wanted = passes(units, batch, WITH_STATISTICS in found)
    print("| kernels | launches | ms | share | GB | TB/s | ms at 4.2 TB/s |\n|---|---|---|---|---|---|---|")
    all_us = sum(us for _, us in found.values())
    for kind, (count, us) in sorted(found.items(), key=lambda item: -item[1][1]):
        size = wanted.get(kind)
        of_memory = f"{size / 1e9:.2f} | {size / us / 1e6:.2f} | {size / MEMORY * 1e3:.2f}" if size else "| | "
        print(f"| {kind} | {count} | {us / 1e3:.2f} | {100 * us / all_us:.0f} % | {of_memory} |")
    print(f"| all | {sum(count for count, _ in found.values())} | {all_us / 1e3:.2f} | | | | |")
    # Two operations for each multiplication in the forward pass, and twice as many backward. The gradient of the images
    # is not computed.
    per_image = 6 * units.macs - 2 * units.stem * 147
    flops = per_image * batch
    convolutions = sum(us for kind, (_, us) in found.items() if "convolution" in kind)
    size = sum(wanted.get(kind, 0) for kind in found)
    print(f"\n{per_image / 1e9:.1f} GFLOP an image, {flops / TENSOR_CORES * 1e3:.1f} ms a step at {TENSOR_CORES / 1e12:.0f} "
          f"TFLOP/s; {flops / convolutions / 1e6:.0f} TFLOP/s in the convolutions.")
    print(f"{size / batch / 1e6:.0f} MB an image, {size / MEMORY * 1e3:.1f} ms a step at {MEMORY / 1e12:.1f} TB/s; "
          f"{size / all_us / 1e6:.2f} TB/s over the step.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", help="bench_resnet_network")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--csv", help="read this instead of running the program")
    options = parser.parse_args()
    if (options.program is None) == (options.csv is None):
        parser.error("either a program or --csv")
    if options.csv:
        with open(options.csv, encoding="utf-8") as lines:
            table(lines, options.batch)
        return
    command = [*PROFILER, options.program, "--batch", str(options.batch), "--steps", "2"]
    table(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines(), options.batch)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws the results in bench/results: images per second of ResNet-50 for Syncrun and PyTorch, and the times of
all_reduce for Syncrun and NCCL (gpus.svg). Also what calls over many nodes cost by the model of model_nodes.py
(nodes.svg).

    bench/plot_results.py docs/figures      # writes the figures there; the same results give the same bytes

Requires matplotlib (Debian and Ubuntu: python3-matplotlib). Exit code: 0, or 77 if matplotlib is missing.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys

from programs import SKIPPED

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
MODES = ("syncrun", "reduce-overhead", "compile", "eager")
NAMES = {"syncrun": "Syncrun", "reduce-overhead": "PyTorch, reduce-overhead", "compile": "PyTorch, torch.compile",
         "eager": "PyTorch, eager", "nccl": "NCCL", "nccl_registered": "NCCL, registered windows",
         "tcp": "TCP", "infiniband": "InfiniBand"}
COLORS = {"syncrun": "#0b6e99", "reduce-overhead": "#e07b39", "compile": "#efb387", "eager": "#b8b8b8", "nccl": "#e07b39",
          "nccl_registered": "#8a8a8a"}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def resnet_rates(runs):
    """Returns the images per second by (rows, GPUs, mode), and the commits by number of GPUs. Each number of GPUs is
    from the first run in which PyTorch was measured with it. Syncrun's rows come from shared memory, by shuffled
    index."""
    rates = {}
    commits = {}
    for run in runs:
        beside = {line["devices"] for line in run["measurements"] if line["impl"] != "syncrun"} - set(commits)
        commits.update({devices: run["commit"] for devices in beside})
        for line in run["measurements"]:
            ours = line["impl"] == "syncrun"
            if line["devices"] in beside and (not ours or line["feed"] == "shuffled"):
                mode = "syncrun" if ours else line["variant"]
                rates.setdefault((line["batch"], line["devices"], mode), line["images_per_s"])
    return rates, commits


def all_reduce_times(run, way):
    """Returns the microseconds by implementation and bytes. `way` is "eager" or "graph"."""
    times = {}
    for line in run["measurements"]:
        size = re.fullmatch(rf"(\d+) ([KMG]iB), {way}", line["what"]) if line["group"] == "all_reduce" else None
        if size:
            of_size = times.setdefault(line["impl"], {}).setdefault(int(size[1]) * UNITS[size[2]], [])
            of_size.append(line["median_us"])
    return {impl: {size: statistics.median(all_of) for size, all_of in sorted(by_size.items())}
            for impl, by_size in times.items()}


def draw_rates(axes, rates, commits, rows):
    counts = sorted({devices for batch, devices, _ in rates if batch == rows})
    width = 0.8 / len(MODES)
    for place, mode in enumerate(MODES):
        known = [(at, rates[rows, devices, mode]) for at, devices in enumerate(counts) if (rows, devices, mode) in rates]
        bars = axes.bar([at + (place - 1.5) * width for at, _ in known], [rate for _, rate in known], width,
                        color=COLORS[mode], label=NAMES[mode])
        axes.bar_label(bars, fmt=lambda rate: f"{rate / 1000:.1f}k", fontsize=7, padding=1)
        for at in set(range(len(counts))) - {at for at, _ in known}:
            axes.text(at + (place - 1.5) * width, 0, " not measured", fontsize=6, rotation=90, ha="center", va="bottom")
    axes.set_xticks(range(len(counts)), [f"{count} GPU{'s' if count > 1 else ''}\n{commits[count]}" for count in counts])
    axes.set_title(f"ResNet-50, bfloat16, {rows} rows a GPU", fontsize=10)
    axes.set_ylabel("images/s")
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate / 1000:g}k")


def draw_all_reduce(axes, times):
    sizes = list(times["nccl"])
    for impl in ("syncrun", "nccl_registered"):
        axes.plot(sizes, [times["nccl"][size] / times[impl][size] for size in sizes], marker="o", markersize=3,
                  color=COLORS[impl], label=NAMES[impl])
    axes.axhline(1, color=COLORS["nccl"], linewidth=1.2, label=NAMES["nccl"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size >> 10}Ki" if size < 1 << 20 else f"{size >> 20}Mi" if size < 1 << 30 else "1Gi"
                            for size in sizes], fontsize=7, rotation=45)
    axes.set_ylim(bottom=0)
    axes.set_title("all_reduce, 4 GPUs, in a CUDA graph", fontsize=10)
    axes.set_xlabel("bytes")
    axes.set_ylabel("times as fast as NCCL")


def draw_empty_calls(axes, model):
    """Lines are the model's, and points are simulated. A tree of fewer than eight nodes makes no sense."""
    for shape, color, least in (("star", COLORS["nccl"], 2), ("tree", COLORS["syncrun"], 8)):
        rows = [row for row in model["rows"] if row["nodes"] >= least]
        nodes = [row["nodes"] for row in rows]
        axes.plot(nodes, [row[f"{shape}_us"] for row in rows], color=color, label=f"{shape}, model")
        axes.plot(nodes, [row[f"simulated_{shape}_us"] for row in rows], "o", markersize=4, color=color,
                  label=f"{shape}, simulated")
    axes.set_yscale("log")
    axes.set_title(f"empty call, {NAMES[model['constants']['name']]} (assumed)", fontsize=10)
    axes.set_ylabel("microseconds")


def draw_data(axes, model):
    rows = model["rows"]
    nodes = [row["nodes"] for row in rows]
    axes.plot(nodes, [row["fresh_ms"] for row in rows], color=COLORS["nccl"],
              label="fresh 64 MiB for each GPU, from the master")
    low, high = zip(*(row["all_reduce_ms"] for row in rows))
    axes.fill_between(nodes, low, high, color=COLORS["syncrun"], alpha=0.4, linewidth=0,
                      label="all_reduce of 100 MB on GPUs")
    axes.set_yscale("log")
    axes.set_title(f"data, {NAMES[model['constants']['name']]} (assumed)", fontsize=10)
    axes.set_ylabel("milliseconds")


def draw_nodes(pyplot, models, path):
    figure, (fast, slow, data) = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    draw_empty_calls(fast, models["infiniband"])
    draw_empty_calls(slow, models["tcp"])
    draw_data(data, models["infiniband"])
    nodes = [row["nodes"] for row in models["tcp"]["rows"]]
    for axes in (fast, slow, data):
        axes.set_xscale("log", base=2)
        axes.set_xticks(nodes, nodes)
        axes.set_xlabel("nodes of 8 GPUs")
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        print("skipped: there is no matplotlib", file=sys.stderr)
        return SKIPPED
    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({"svg.hashsalt": "syncrun", "svg.fonttype": "none", "font.family": "sans-serif",
                                "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})

    resnet = json.loads((RESULTS / "resnet_h200.json").read_text())["runs"]  # the newest comes first
    gpus = json.loads((RESULTS / "gpu_4_h200.json").read_text())
    figure, (large, small, reduce) = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    rates, commits = resnet_rates(resnet)
    draw_rates(large, rates, commits, 256)
    draw_rates(small, rates, commits, 32)
    draw_all_reduce(reduce, all_reduce_times(gpus, "graph"))
    large.legend(fontsize=7, frameon=False, loc="upper left")
    reduce.legend(fontsize=7, frameon=False)
    options.folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.folder / "gpus.svg", metadata={"Date": None})

    models = json.loads((RESULTS / "nodes_model.json").read_text())["models"]
    draw_nodes(pyplot, {model["constants"]["name"]: model for model in models}, options.folder / "nodes.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The measurements of run_gpu.py: what each is compared with, and the targets."""

import dataclasses

LARGE_ALL_REDUCES = ("32 MiB", "256 MiB", "1 GiB")
SMALL_MODELS = ("tiny, 64", "small, 64", "medium, 64")


@dataclasses.dataclass
class Group:
    """One kind of measurement, and the programs that Syncrun is compared with."""
    bench: str
    title: str
    comparators: tuple = ()
    fewest_devices: int = 1
    most_devices: int = 8


GROUPS = {
    "call": Group("gpu_call", "empty call"),
    "scatter": Group("gpu_scatter", "scatter", ("pinned_copy",)),
    "shuffle": Group("gpu_shuffle", "scatter", ("host_gather",)),
    "all_reduce": Group("gpu_all_reduce", "all_reduce", ("nccl", "nccl_registered"), fewest_devices=2),
    "launch": Group("gpu_launch", "launch to", ("torchrun",)),
    "update": Group("gpu_update", "update", ("copy",)),
    "values": Group("gpu_values", "Values,", ("one_process", "without_move"), fewest_devices=2, most_devices=2),
    "mnist": Group("mnist_step", "MNIST step", ("torch_ddp", "torch_graph")),
    "resnet": Group("resnet_step", "ResNet-50 step", ("torch_ddp",)),
    "resnet_modules": Group("resnet_step", "step of ResNet-50 of LibTorch's modules,", ("torch_ddp",)),
    "gpt": Group("gpt_step", "GPT step", ("torch_eager", "torch_compile")),
    # Two nodes, all on this machine (tests/nodes/as_node.sh), with one GPU each. With four devices, each has two.
    "nodes_all_reduce": Group("gpu_all_reduce", "two nodes, all_reduce", ("nccl", "nccl_parts", "nccl_leaders"),
                              fewest_devices=2, most_devices=4),
    "nodes_mnist": Group("mnist_step", "two nodes, MNIST step", ("torch_ddp",), fewest_devices=2, most_devices=4),
    "nodes_resnet": Group("resnet_step", "two nodes, ResNet-50 step", ("torch_ddp",), fewest_devices=2, most_devices=4),
}


def target_ratio(group, what, comparator, devices):
    """Returns the target: how many times as fast as the comparator Syncrun has to be. None if there is no target."""
    if group == "scatter":
        return 0.92
    if group == "shuffle":
        return 1.0 if what.startswith("150528 B") else 1.5
    if group == "all_reduce":
        if comparator == "nccl_registered":  # in windows of NCCL's own memory: only shown
            return None
        return 0.97 if what.startswith(LARGE_ALL_REDUCES) else 1.0
    if group == "launch":
        return 3.0
    if group == "update":
        return 0.85
    if group == "values":
        if comparator == "without_move":
            return 0.97
        return 0.98 if "products" in what else 0.95 if "in a row" in what else 0.9
    if group == "mnist" and not what.endswith("not waited for"):
        return {"torch_ddp": 8.0, "torch_graph": 1.5}[comparator]
    if group.startswith("nodes_"):
        if what.endswith("not waited for"):
            return None
        if group == "nodes_all_reduce":
            return 0.97 if comparator == "nccl" else None  # other ways, only shown
        return 1.0
    if group == "resnet":
        if what.endswith((", mapped", ", synthetic")):
            return None  # PyTorch is compared only with the slowest feed, by shuffled index
        return {"256": 1.15, "32": 2.0}[what.split()[0]]
    if group == "resnet_modules":
        return {"256": 1.0, "32": 1.2}[what.split()[0]]
    if group == "gpt":
        setting = what.split(" rows")[0]
        of_small = {"torch_eager": 5.0, "torch_compile": 1.35 if devices == 1 else 2.0}[comparator]
        of_gpt2 = {"torch_eager": {"gpt2, 32": 1.0, "gpt2, 8": 1.2}, "torch_compile": {"gpt2, 32": 0.78}}[comparator]
        return of_small if setting in SMALL_MODELS else of_gpt2.get(setting)
    return None

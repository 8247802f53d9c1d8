#!/usr/bin/env python3
"""Trains a small least-squares problem with the rules and schedules of Python's torch.optim, in double precision, and writes
the results to torch_optim.hpp. Tests of rules and schedules compare with it. Requires PyTorch. The header was written with
PyTorch 2.15.0 on a CPU.

Each case takes 100 steps with three parameter groups, a clipped gradient and a schedule with restarts. Lion is not in
torch.optim: it is written here as in its paper (arXiv 2302.06675, algorithm 2).

usage: torch_optim.py FILE
"""

import sys

import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ROWS, COLUMNS, STEPS, CLIP = 20, 12, 100, 1.0


def problem():
    """The same numbers as in the header. They are multiples of 1/16, so a float represents them exactly."""
    x = [[((7 * i + 5 * j + 3 * i * j) % 17 - 8) / 16 for j in range(COLUMNS)] for i in range(ROWS)]
    y = [((5 * i + 2) % 13 - 6) / 8 for i in range(ROWS)]
    start = [((3 * j) % 7 - 3) / 4 for j in range(COLUMNS)]
    return torch.tensor(x), torch.tensor(y), torch.tensor(start)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                change = (beta1 * m + (1 - beta1) * p.grad).sign()
                p -= group["lr"] * (change + group["weight_decay"] * p)
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


def train(make, rate, decay, own, average=None):
    """`own` has the hyperparameters that only the last group has. `average` has the options of an AveragedModel, which
    takes the parameters after each step. With it, the result is the average."""
    x, y, start = problem()
    parts = [part.clone().requires_grad_() for part in start.split(COLUMNS // 3)]
    groups = [
        {"params": [parts[0]], "lr": rate / 2, "weight_decay": 0.0},
        {"params": [parts[1]], "lr": rate, "weight_decay": decay},
        {"params": [parts[2]], "lr": rate, "weight_decay": 2 * decay, **own},
    ]
    optimizer = make(groups)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=15, T_mult=2)
    averaged = None if average is None else AveragedModel(torch.nn.ParameterList(parts), **average)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((x @ torch.cat(parts) - y) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(parts, CLIP)
        optimizer.step()
        schedule.step()
        if averaged is not None:
            averaged.update_parameters(torch.nn.ParameterList(parts))
    return torch.cat(parts if averaged is None else list(averaged.module)).tolist()


OUTPUTS = 5


def train_matrices(make, decay):
    """Two matrices, one with more rows and one with more columns, and a vector that only Adafactor trains. With a rate of
    0.05, rounding errors of 1e-16 grow to 1e-3 in Muon."""
    x, y, start = problem()
    x = x[:, : COLUMNS // 2]
    target = torch.stack([y.roll(i) for i in range(OUTPUTS)], 1)
    first = start.repeat(2).reshape(COLUMNS // 2, 4).clone().requires_grad_()
    second = start.repeat(2)[: 4 * OUTPUTS].reshape(4, OUTPUTS).flip(1).clone().requires_grad_()
    bias = start[:OUTPUTS].clone().requires_grad_()
    is_factored = make is O.Adafactor
    optimizer = make([first, second] + ([bias] if is_factored else []), lr=0.02, weight_decay=decay)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=15, T_mult=2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        bias.grad = None
        ((x @ first @ second + bias - target) ** 2).mean().backward()
        optimizer.step()
        schedule.step()
    return torch.cat([first.flatten(), second.flatten(), bias]).tolist()


def in_float64(train):
    """torch.optim.Muon iterates in bfloat16. The tests compare iterations in float64."""
    rounded, torch.bfloat16 = torch.bfloat16, torch.float64
    try:
        return train()
    finally:
        torch.bfloat16 = rounded


BETAS = {"betas": (0.8, 0.95)}
O = torch.optim
RULES = {
    "kSgdPlain": lambda: train(lambda g: O.SGD(g, 0.1), 0.1, 0.01, {}),
    "kSgdMomentum": lambda: train(lambda g: O.SGD(g, 0.1, 0.9), 0.1, 0.01, {"momentum": 0.7}),
    "kSgdDampened": lambda: train(lambda g: O.SGD(g, 0.1, 0.9, 0.3), 0.1, 0.01, {}),
    "kSgdNesterov": lambda: train(lambda g: O.SGD(g, 0.1, 0.9, nesterov=True), 0.1, 0.01, {"momentum": 0.7}),
    "kAdagrad": lambda: train(
        lambda g: O.Adagrad(g, 0.1, lr_decay=0.01, initial_accumulator_value=0.25), 0.1, 0.01, {}),
    "kRmsProp": lambda: train(lambda g: O.RMSprop(g, 0.02, alpha=0.95), 0.02, 0.01, {}),
    "kRmsPropMomentum": lambda: train(
        lambda g: O.RMSprop(g, 0.005, alpha=0.95, momentum=0.9), 0.005, 0.01, {"momentum": 0.7}),
    "kRmsPropCentered": lambda: train(lambda g: O.RMSprop(g, 0.005, alpha=0.95, centered=True), 0.005, 0.01, {}),
    "kRmsPropCenteredMomentum": lambda: train(
        lambda g: O.RMSprop(g, 0.002, alpha=0.95, momentum=0.9, centered=True), 0.002, 0.01, {"momentum": 0.7}),
    "kAdadelta": lambda: train(lambda g: O.Adadelta(g, 1.0, rho=0.9), 1.0, 0.01, {}),
    "kAdam": lambda: train(lambda g: O.Adam(g, 0.02), 0.02, 0.01, BETAS),
    "kAdamW": lambda: train(lambda g: O.AdamW(g, 0.02), 0.02, 0.1, BETAS),
    "kAmsGrad": lambda: train(lambda g: O.Adam(g, 0.02, amsgrad=True), 0.02, 0.01, BETAS),
    "kAmsGradW": lambda: train(lambda g: O.AdamW(g, 0.02, (0.9, 0.9), amsgrad=True), 0.02, 0.1, {}),
    "kNAdam": lambda: train(lambda g: O.NAdam(g, 0.02), 0.02, 0.01, BETAS),
    "kNAdamW": lambda: train(lambda g: O.NAdam(g, 0.02, decoupled_weight_decay=True), 0.02, 0.1, {}),
    "kRAdam": lambda: train(lambda g: O.RAdam(g, 0.02), 0.02, 0.01, BETAS),
    "kRAdamW": lambda: train(lambda g: O.RAdam(g, 0.02, decoupled_weight_decay=True), 0.02, 0.1, {}),
    "kAdamax": lambda: train(lambda g: O.Adamax(g, 0.02), 0.02, 0.01, BETAS),
    "kAdamEma": lambda: train(
        lambda g: O.Adam(g, 0.02), 0.02, 0.01, BETAS, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}),
    "kAdamSwa": lambda: train(lambda g: O.Adam(g, 0.02), 0.02, 0.01, BETAS, {}),
    "kAdafactor": lambda: train_matrices(O.Adafactor, 0.1),
    "kMuon": lambda: in_float64(lambda: train_matrices(O.Muon, 0.1)),
    "kMuonMatched": lambda: in_float64(
        lambda: train_matrices(lambda p, **o: O.Muon(p, nesterov=False, adjust_lr_fn="match_rms_adamw", **o), 0.1)),
    "kLion": lambda: train(lambda g: Lion(g, 0.01, (0.9, 0.99), 0.0), 0.01, 0.1, BETAS),
}


def rates(make, base=1.0, count=40):
    """The rates of the first steps."""
    optimizer = O.SGD([torch.zeros(1, requires_grad=True)], base, 0.9)
    schedule = make(optimizer)
    values = []
    for _ in range(count):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


def momenta(make, count=40):
    optimizer = O.SGD([torch.zeros(1, requires_grad=True)], 1.0, 0.9)
    schedule = make(optimizer)
    values = []
    for _ in range(count):
        values.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        schedule.step()
    return values


def plateau_metric(i):
    """Falls, then stays almost the same with small waves, then falls again for a while."""
    return (20 - i) / 4 if i < 12 else 2 + ((7 * i) % 5) / 1000 if i < 30 else (60 - i) / 20


def plateau(**options):
    optimizer = O.SGD([torch.zeros(1, requires_grad=True)], 0.5)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    values = []
    for i in range(40):
        schedule.step(plateau_metric(i) * (-1 if options.get("mode") == "max" else 1))
        values.append(optimizer.param_groups[0]["lr"])
    return values


def one_cycle(**options):
    return lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=40, **options)


SCHEDULES = {
    "kStepLr": lambda: rates(lambda o: lr_scheduler.StepLR(o, 7, 0.3)),
    "kMultiStepLr": lambda: rates(lambda o: lr_scheduler.MultiStepLR(o, [5, 9, 30], 0.3)),
    "kExponentialLr": lambda: rates(lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "kLinearLr": lambda: rates(lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 10)),
    "kCosineLr": lambda: rates(lambda o: lr_scheduler.CosineAnnealingLR(o, 39, 0.1)),
    "kWarmRestarts": lambda: rates(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2, 0.1)),
    "kEqualRestarts": lambda: rates(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 6)),
    "kOneCycle": lambda: rates(one_cycle()),
    "kOneCycleMomentum": lambda: momenta(one_cycle()),
    "kOneCycleLinear": lambda: rates(
        one_cycle(pct_start=0.45, anneal_strategy="linear", div_factor=10, final_div_factor=100)),
    "kOneCycleThree": lambda: rates(one_cycle(three_phase=True)),
    "kOneCycleThreeMomentum": lambda: momenta(one_cycle(three_phase=True, base_momentum=0.8, max_momentum=0.99)),
    "kPlateau": lambda: plateau(factor=0.5, patience=2),
    "kPlateauAbsolute": lambda: plateau(
        mode="max", factor=0.5, patience=1, threshold=0.002, threshold_mode="abs", cooldown=3, min_lr=0.02),
    "kPlateauNoPatience": lambda: plateau(factor=0.1, patience=0, threshold=0.1, min_lr=1e-4, eps=1e-3),
}


def block(name, values):
    text = ", ".join(repr(value) for value in values)
    return f"inline constexpr std::array<double, {len(values)}> {name}{{{text}}};"


def header():
    yield f"""#pragma once

// The parameters after training with the rules of torch.optim, and rates of its schedules: written by torch_optim.py, which
// says how, with PyTorch {torch.__version__.split('+')[0]}.

#include <array>

namespace torch_optim {{

inline constexpr int kRows = {ROWS};
inline constexpr int kColumns = {COLUMNS};
inline constexpr int kSteps = {STEPS};
inline constexpr double kClipNorm = {CLIP};
inline constexpr int kOutputs = {OUTPUTS};

constexpr double x(int i, int j) {{ return ((7 * i + 5 * j + 3 * i * j) % 17 - 8) / 16.0; }}
constexpr double y(int i) {{ return ((5 * i + 2) % 13 - 6) / 8.0; }}
constexpr double start(int j) {{ return ((3 * j) % 7 - 3) / 4.0; }}
constexpr double plateau_metric(int i) {{
  return i < 12 ? (20 - i) / 4.0 : i < 30 ? 2 + ((7 * i) % 5) / 1000.0 : (60 - i) / 20.0;
}}

// clang-format off"""
    for name, compute in {**RULES, **SCHEDULES}.items():
        yield block(name, compute())
    yield """// clang-format on

}  // namespace torch_optim"""


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    with open(sys.argv[1], "w") as file:
        file.write("\n".join(header()) + "\n")

#!/usr/bin/env python3
"""Computes the numbers that tests of update rules compare with. Each rule is written as in its paper, with the
equations that include/syncrun/update_rules.hpp names. It handles one parameter and one step at a time, in double
precision.

usage: update_reference.py FILE           writes the header
       update_reference.py --check FILE   exit code 1 unless the header contains exactly that
"""

import math
import sys

PARAMETERS, STEPS = 5, 6


def start(i):
    return ((3 * i) % 7 - 3) / 4


def gradient(t, i):
    """The gradient of parameter i in step t, from 1. It is a multiple of 1/8, so a float represents it exactly."""
    return ((7 * i + 5 * t) % 11 - 5) / 8


def sgd(p, g, state, t, rate, decay=0.0):
    return p - rate * (g + decay * p)


def momentum(p, g, state, t, rate, mu, decay=0.0):
    velocity = mu * state.get("v", 0.0) - rate * (g + decay * p)
    state["v"] = velocity
    return p + velocity


def nesterov(p, g, state, t, rate, mu, decay=0.0):
    g = g + decay * p
    state["v"] = mu * state.get("v", 0.0) - rate * g
    return p + mu * state["v"] - rate * g


def adagrad(p, g, state, t, rate, epsilon, decay=0.0):
    g = g + decay * p
    state.setdefault("all", []).append(g)
    return p - rate * g / (epsilon + math.sqrt(math.fsum(x * x for x in state["all"])))


def rmsprop(p, g, state, t, rate, rho, epsilon, decay=0.0):
    g = g + decay * p
    mean_square = rho * state.get("ms", 0.0) + (1 - rho) * g**2
    state["ms"] = mean_square
    return p - rate * g / (math.sqrt(mean_square) + epsilon)


def adadelta(p, g, state, t, rate, rho, epsilon, decay=0.0):
    g = g + decay * p
    state["g2"] = rho * state.get("g2", 0.0) + (1 - rho) * g**2
    rms_change = math.sqrt(state.get("x2", 0.0) + epsilon)
    rms_gradient = math.sqrt(state["g2"] + epsilon)
    change = -rms_change / rms_gradient * g
    state["x2"] = rho * state.get("x2", 0.0) + (1 - rho) * change**2
    return p + rate * change


def adam(p, g, state, t, rate, beta1, beta2, epsilon, decay=0.0, decoupled=0.0):
    g = g + decay * p
    p = p - rate * decoupled * p
    state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g**2
    m_hat = state["m"] / (1 - beta1**t)
    v_hat = state["v"] / (1 - beta2**t)
    return p - rate * m_hat / (math.sqrt(v_hat) + epsilon)


def adamax(p, g, state, t, rate, beta1, beta2, epsilon, decay=0.0):
    g = g + decay * p
    state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    state["u"] = max(beta2 * state.get("u", 0.0), abs(g) + epsilon)
    return p - rate / (1 - beta1**t) * state["m"] / state["u"]


CASES = {
    "kSgd": lambda *now: sgd(*now, rate=0.1),
    "kSgdDecayed": lambda *now: sgd(*now, rate=0.1, decay=0.01),
    "kMomentum": lambda *now: momentum(*now, rate=0.1, mu=0.9, decay=0.01),
    "kNesterov": lambda *now: nesterov(*now, rate=0.1, mu=0.9, decay=0.01),
    "kAdagrad": lambda *now: adagrad(*now, rate=0.1, epsilon=1e-10, decay=0.01),
    "kRmsProp": lambda *now: rmsprop(*now, rate=0.01, rho=0.9, epsilon=1e-8, decay=0.01),
    "kAdadelta": lambda *now: adadelta(*now, rate=1.0, rho=0.95, epsilon=1e-6, decay=0.01),
    "kAdam": lambda *now: adam(*now, rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8),
    "kAdamDecayed": lambda *now: adam(*now, rate=0.01, beta1=0.8, beta2=0.99, epsilon=1e-6, decay=0.1),
    "kAdamW": lambda *now: adam(*now, rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8, decoupled=0.1),
    "kAdamax": lambda *now: adamax(*now, rate=0.02, beta1=0.9, beta2=0.999, epsilon=1e-8, decay=0.01),
}


def after_all_steps(rule, i):
    p, state = start(i), {}
    for t in range(1, STEPS + 1):
        p = rule(p, gradient(t, i), state, t)
    return p


def header():
    yield "#pragma once"
    yield ""
    yield "// Parameters after six steps of each rule: written by update_reference.py, which says how they come about."
    yield ""
    yield "#include <array>"
    yield ""
    yield "namespace update_reference {"
    yield ""
    yield f"inline constexpr int kParameters = {PARAMETERS};"
    yield f"inline constexpr int kSteps = {STEPS};"
    yield "using Values = std::array<double, kParameters>;"
    yield ""
    yield "constexpr double start(int i) { return ((3 * i) % 7 - 3) / 4.0; }"
    yield "constexpr double gradient(int step, int i) { return ((7 * i + 5 * step) % 11 - 5) / 8.0; }"
    yield ""
    yield "// clang-format off"
    for name, rule in CASES.items():
        values = ", ".join(repr(after_all_steps(rule, i)) for i in range(PARAMETERS))
        yield f"inline constexpr Values {name}{{"
        yield f"    {values}}};"
    yield "// clang-format on"
    yield ""
    yield "}  // namespace update_reference"


def main(arguments):
    text = "\n".join(header()) + "\n"
    if len(arguments) == 1:
        with open(arguments[0], "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    if len(arguments) == 2 and arguments[0] == "--check":
        with open(arguments[1], encoding="utf-8") as file:
            return 0 if file.read() == text else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

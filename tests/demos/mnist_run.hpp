#pragma once

// Runs of syncrun-mnist, for tests that look at its losses.

#include <string>
#include <vector>

#include "tests/demos/command.hpp"
#include "tests/support/temporary_folder.hpp"

using Words = std::vector<std::string>;

/// syncrun-mnist by itself.
CommandResult run_mnist(const Words& options);
/// The options of `syncrun` that choose so many CPU devices, also on a machine with GPUs.
Words cpu_devices(int workers);
/// With `syncrun` in front, on CPU devices.
CommandResult run_mnist_on(int workers, const Words& options);
/// With `syncrun` and these options in front.
CommandResult run_mnist_under(const Words& syncrun_options, const Words& options);

struct Losses {
  double training;
  double validation;
  bool operator==(const Losses&) const = default;
};

/// Runs the demo or a twin of it, and returns the losses of every epoch.
std::vector<Losses> losses_of(Words command);
/// Trains under `syncrun` with these options and returns the losses of every epoch.
std::vector<Losses> losses_under(const Words& syncrun_options, const Words& options);
/// Trains on `workers` CPU devices and returns the losses of every epoch.
std::vector<Losses> losses_on(int workers, const Words& options);

/// Expects the losses of every epoch to differ by `tolerance` of their size at most.
void expect_equal(const std::vector<Losses>& expected, const std::vector<Losses>& got, double tolerance);

#pragma once

// Runs of syncrun-mnist, for tests that check its losses.

#include <string>
#include <vector>

#include "tests/demos/demo_run.hpp"
#include "tests/support/temporary_folder.hpp"

using demos::testing::CommandResult;
using demos::testing::devices;
using demos::testing::with;
using demos::testing::Words;

/// Runs syncrun-mnist without `syncrun`.
CommandResult run_mnist(const Words& options);
/// Runs syncrun-mnist under `syncrun`, on CPU devices.
CommandResult run_mnist_on(int workers, const Words& options);
/// Runs syncrun-mnist under `syncrun` with these options.
CommandResult run_mnist_under(const Words& syncrun_options, const Words& options);

struct Losses {
  double training;
  double validation;
  bool operator==(const Losses&) const = default;
};

/// Runs the demo or its serial twin, and returns the losses of every epoch.
std::vector<Losses> losses_of(Words command);
/// Trains under `syncrun` with these options and returns the losses of every epoch.
std::vector<Losses> losses_under(const Words& syncrun_options, const Words& options);
/// Trains on `workers` CPU devices and returns the losses of every epoch.
std::vector<Losses> losses_on(int workers, const Words& options);

/// Expects the losses of every epoch to differ from the expected ones by at most `tolerance` times their size.
void expect_equal(const std::vector<Losses>& expected, const std::vector<Losses>& got, double tolerance);

#include "tests/demos/mnist_run.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

namespace fs = std::filesystem;

namespace {

/// The command line of syncrun-mnist under `syncrun` with these options.
Words mnist_under(const Words& syncrun_options, const Words& options) {
  return with(with(with({SYNCRUN_COMMAND}, syncrun_options), {MNIST_PROGRAM}), options);
}

}  // namespace

CommandResult run_mnist(const Words& options) { return syncrun::test::run_command(with({MNIST_PROGRAM}, options)); }

CommandResult run_mnist_under(const Words& syncrun_options, const Words& options) {
  return syncrun::test::run_command(mnist_under(syncrun_options, options));
}

CommandResult run_mnist_on(int workers, const Words& options) { return run_mnist_under(devices(workers), options); }

std::vector<Losses> losses_of(Words command) {
  const TemporaryFolder folder;
  const fs::path file = folder / "losses";
  const CommandResult result = syncrun::test::run_command(with(std::move(command), {"--losses", file.string()}));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  std::vector<Losses> losses;
  std::ifstream lines(file);
  int epoch = 0;
  for (Losses read{}; lines >> epoch >> read.training >> read.validation;) losses.push_back(read);
  return losses;
}

std::vector<Losses> losses_under(const Words& syncrun_options, const Words& options) {
  return losses_of(mnist_under(syncrun_options, options));
}

std::vector<Losses> losses_on(int workers, const Words& options) { return losses_under(devices(workers), options); }

void expect_equal(const std::vector<Losses>& expected, const std::vector<Losses>& got, double tolerance) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(got[i].training, expected[i].training, tolerance * expected[i].training) << "epoch " << i + 1;
    EXPECT_NEAR(got[i].validation, expected[i].validation, tolerance * expected[i].validation) << "epoch " << i + 1;
  }
}

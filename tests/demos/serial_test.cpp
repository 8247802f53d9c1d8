// syncrun-mnist-serial, the twin of syncrun-mnist without Syncrun. It gives the same bits as syncrun-mnist on one
// worker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/demos/mnist_run.hpp"
#include "tests/support/command_run.hpp"

namespace {

using ::testing::HasSubstr;

Words serially(const Words& options) { return with({MNIST_SERIAL_PROGRAM}, options); }

/// The output without the times.
std::string without_seconds(const std::string& output) {
  return std::regex_replace(output, std::regex(R"(\d+\.\d\d s\n)"), "\n");
}

void expect_the_losses_of_one_worker(const Words& options) {
  SCOPED_TRACE(::testing::PrintToString(options));
  const std::vector<Losses> expected = losses_on(1, options);
  ASSERT_FALSE(expected.empty());
  EXPECT_TRUE(losses_of(serially(options)) == expected);
}

TEST(SerialTwin, HasExactlyTheLossesOfOneWorker) {
  expect_the_losses_of_one_worker({"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float64", "--epochs", "4"});
  expect_the_losses_of_one_worker({"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float32", "--epochs", "4"});
  expect_the_losses_of_one_worker({"--model", "custom_mlp:1,32,0,0", "--dtype", "float64", "--epochs", "2", "--input",
                                   "device", "--batch-size", "7", "--seed", "5", "--momentum", "0.5"});
  expect_the_losses_of_one_worker({"--model", "cnn", "--dtype", "float64", "--epochs", "1"});
}

TEST(SerialTwin, PrintsTheSameLines) {
  const Words options{"--model", "custom_mlp:1,32,0,0", "--epochs", "3"};
  const CommandResult twin = syncrun::test::run_command(serially(options));
  const CommandResult demo = run_mnist_on(1, options);
  EXPECT_EQ(twin.exit_code, 0) << twin.errors;
  EXPECT_THAT(twin.output, HasSubstr("test accuracy"));
  EXPECT_EQ(without_seconds(twin.output), without_seconds(demo.output));
}

TEST(SerialTwin, RefusesWhatTheDemoRefuses) {
  for (const Words& options : {Words{"--epochs", "0"}, Words{"--input", "disk"}, Words{"--data", "/nowhere"}}) {
    const CommandResult twin = syncrun::test::run_command(serially(options));
    const CommandResult demo = run_mnist(options);
    EXPECT_EQ(twin.exit_code, demo.exit_code);
    EXPECT_EQ(twin.errors, std::regex_replace(demo.errors, std::regex("syncrun-mnist:"), "syncrun-mnist-serial:"));
  }
  const CommandResult tf32 = syncrun::test::run_command(serially({"--dtype", "tf32"}));
  EXPECT_EQ(tf32.exit_code, 2);
  EXPECT_THAT(tf32.errors, HasSubstr("TF32 (--dtype tf32): expected CUDA devices, which have it, got cpu0"));
}

TEST(SerialTwin, PrintsItsHelp) {
  const CommandResult result = syncrun::test::run_command(serially({"--help"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("usage: syncrun-mnist-serial [OPTION...]\n\n  --data DIR"));
}

}  // namespace

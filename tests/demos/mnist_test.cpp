// syncrun-mnist as users run it: with and without `syncrun`, on one to four workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/demos/mnist_run.hpp"
#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// The percentage in the last line of the output. It is a failure of the test if the line has another form.
double test_accuracy(const std::string& output) {
  std::smatch match;
  const std::regex last_line(R"((?:^|\n)test accuracy: (\d{1,3}\.\d\d) %\n$)");
  if (std::regex_search(output, match, last_line)) return std::stod(match[1]);
  ADD_FAILURE() << "no test accuracy at the end of:\n" << output;
  return 0;
}

/// Compares the losses of one worker, with the default input, with those of `workers`, with either input.
void expect_same_losses(const Words& options, const std::vector<int>& workers, double tolerance) {
  const std::vector<Losses> alone = losses_on(1, options);
  ASSERT_FALSE(alone.empty());
  for (const char* input : {"host", "device"}) {
    for (const int n : workers) {
      SCOPED_TRACE(std::to_string(n) + " workers, input " + input);
      expect_equal(alone, losses_on(n, with(options, {"--input", input})), tolerance);
    }
  }
}

constexpr double kFloat64Tolerance = 1e-9;
constexpr double kFloat32Tolerance = 1e-4;

TEST(MnistLosses, InFloat64AreThoseOfOneWorkerInEveryEpochWithDropout) {
  expect_same_losses({"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float64"}, {1, 3}, kFloat64Tolerance);
}

TEST(MnistLosses, InFloat32AreThoseOfOneWorkerInTheFirstThreeEpochs) {
  expect_same_losses({"--dtype", "float32", "--epochs", "3"}, {2, 4}, kFloat32Tolerance);
}

TEST(MnistLosses, StayTheSameWhereABatchHasNoRowsForSomeWorkers) {
  expect_same_losses({"--model", "custom_mlp:1,32,0,0", "--dtype", "float64", "--epochs", "2", "--batch-size", "3"},
                     {4}, kFloat64Tolerance);
}

TEST(MnistLosses, OfTheCnnAreThoseOfOneWorker) {
  expect_same_losses({"--model", "cnn", "--dtype", "float64", "--epochs", "1"}, {3}, kFloat64Tolerance);
}

TEST(MnistLosses, ChangeWithTheSeed) {
  const Words options{"--model", "custom_mlp:1,32,0,0", "--epochs", "1"};
  EXPECT_NE(losses_on(1, options).front().training, losses_on(1, with(options, {"--seed", "2"})).front().training);
}

TEST(Mnist, ClassifiesTheDigitsWithDefaultSettings) {
  const CommandResult result = run_mnist({});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_GE(test_accuracy(result.output), 97.5);
  EXPECT_EQ(result.errors, "");
}

TEST(Mnist, PrintsOnePlainLinePerEpoch) {
  const CommandResult result = run_mnist_on(2, {"--model", "custom_mlp:1,32,0,0", "--epochs", "2"});
  const std::regex lines(
      R"(\S+: 1366 training rows, 71 held out for validation, 360 to test; 2 workers \(cpu0 to cpu1\)\n)"
      R"(epoch  1/2  loss \d\.\d{6}  validation loss \d\.\d{6}  validation accuracy \d+\.\d\d %  \d+\.\d\d s\n)"
      R"(epoch  2/2  loss \d\.\d{6}  validation loss \d\.\d{6}  validation accuracy \d+\.\d\d %  \d+\.\d\d s\n)"
      R"(test accuracy: \d+\.\d\d %\n)");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(std::regex_match(result.output, lines)) << result.output;
}

TEST(Mnist, RefusesTf32OnCpuDevices) {
  const CommandResult result = run_mnist_on(1, {"--dtype", "tf32"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, HasSubstr("TF32 (--dtype tf32): expected CUDA devices, which have it, got cpu0"));
}

TEST(Mnist, PrintsItsHelp) {
  const CommandResult result = run_mnist({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* option : {"--data", "--model", "--batch-size", "--epochs", "--learning-rate", "--momentum", "--seed",
                             "--input", "--dtype", "--losses"}) {
    EXPECT_THAT(result.output, HasSubstr(option));
  }
  EXPECT_EQ(run_mnist_on(2, {"--help"}).errors, "") << "it is a Syncrun program, though it opened no session";
}

struct BadOptions {
  Words options;
  std::string message;
};

TEST(Mnist, RefusesBadOptionsAndSaysWhatItExpected) {
  const std::vector<BadOptions> cases{
      {{"--batch-size", "0"}, "--batch-size: expected a whole number from 1 to 1000000, got '0'"},
      {{"--batch-size", "-60"}, "--batch-size: expected a whole number from 1 to 1000000, got '-60'"},
      {{"--batch-size", "60x"}, "--batch-size: expected a whole number from 1 to 1000000, got '60x'"},
      {{"--epochs", "1e3"}, "--epochs: expected a whole number from 1 to 10000, got '1e3'"},
      {{"--epochs", ""}, "--epochs: expected a whole number from 1 to 10000, got ''"},
      {{"--learning-rate", "0"}, "--learning-rate: expected a number above 0 and up to 1000, got '0'"},
      {{"--learning-rate", "nan"}, "--learning-rate: expected a number above 0 and up to 1000, got 'nan'"},
      {{"--momentum", "1"}, "--momentum: expected a number from 0 to below 1, got '1'"},
      {{"--seed", "18446744073709551616"}, "--seed: expected a whole number from 0 to 2^64 - 1"},
      {{"--input", "disk"}, "--input: expected 'host' or 'device', got 'disk'"},
      {{"--dtype", "float16"}, "--dtype: expected 'float32', 'float64' or 'tf32', got 'float16'"},
      {{"--model", "rnn"}, "--model: model 'rnn': expected 'mlp', 'cnn' or"},
      {{"--model", "custom_mlp:2,800,0.5"}, "expected four values"},
      {{"--epochs"}, "--epochs: expected a value, got none"},
      {{"--epochs="}, "--epochs: expected a whole number from 1 to 10000, got ''"},
      {{"--epochs", "0x10"}, "--epochs: expected a whole number from 1 to 10000, got '0x10'"},
      {{"--epochs", "0", "--epochs", "3"}, "--epochs: expected a whole number from 1 to 10000, got '0'"},
      {{"--checkpoint=", "--resume"}, "--checkpoint: expected a folder, got ''"},
      {{"--resume=true"}, "--resume: expected no value, got 'true'"},
      {{"--epoch-count", "3"}, "expected one of those that --help lists, got '--epoch-count'"},
      {{"-n", "3"}, "expected one of those that --help lists, got '-n'"},
      {{"15"}, "expected no other arguments, got '15'"},
      {{"--losses", "/nowhere/losses"}, "--losses: expected a file that can be written, got '/nowhere/losses'"},
  };
  for (const BadOptions& bad : cases) {
    const CommandResult result = run_mnist(bad.options);
    EXPECT_EQ(result.exit_code, 2) << bad.message;
    EXPECT_THAT(result.errors, HasSubstr(bad.message));
    EXPECT_EQ(result.output, "") << "nothing is done before options are checked";
  }
}

TEST(Mnist, RefusesBadDataBeforeAWorkerStarts) {
  const TemporaryFolder folder;
  const auto expect_refused = [&](const char* message) {
    const CommandResult result = run_mnist_on(2, {"--data", folder.at("digits")});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.errors, HasSubstr(message));
    EXPECT_EQ(result.output, "");
  };
  expect_refused("expected train-images-idx3-ubyte or digits-train-images-idx3-ubyte");
  fs::copy(MNIST_DIGITS, folder / "digits");
  std::fstream images(folder / "digits/digits-test-images-idx3-ubyte", std::ios::in | std::ios::out | std::ios::binary);
  images.seekp(11) << std::string("\x04\0\0\0\x10", 5) << std::flush;
  expect_refused("expected test images of 8 x 8 pixels as the training images, got 4 x 16 pixels");
}

}  // namespace

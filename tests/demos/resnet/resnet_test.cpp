// syncrun-resnet as users run it: what it refuses before it starts a worker, what it prints, and that it learns.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "tests/demos/resnet/npy_files.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const Words kSmallNetwork{"--depth", "18", "--width", "8"};

/// A data set of 20 images for training and 8 for evaluation.
class Resnet : public ::testing::Test {
 protected:
  Resnet() {
    write_pair(folder_.path(), "", 20, 36, 4);
    write_pair(folder_.path(), "_test", 8, 36, 4);
  }

  CommandResult run(const Words& options) const {
    return run_resnet_on(2, with(kSmallNetwork, with({"--data", folder_.path().string()}, options)));
  }

  void expect_refused(const std::string& message, const Words& options) const {
    const CommandResult result = run(options);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("syncrun-resnet: " + message));
    EXPECT_EQ(result.output, "") << "nothing is done before options and data are checked";
  }

  fs::path file(const char* name) const { return folder_ / name; }

  TemporaryFolder folder_;
};

TEST_F(Resnet, PrintsItsHelp) {
  const CommandResult result = run_resnet_on(1, {"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("usage: syncrun-resnet --data DIR"));
  EXPECT_EQ(result.errors, "");
}

TEST_F(Resnet, RefusesBadOptionsAndBadDataBeforeAWorkerStarts) {
  expect_refused("--depth: expected '18', '34', '50', '101' or '152', got '19'", {"--depth", "19"});
  expect_refused("--crop: expected at most 36, the smaller side of the images, got '40'", {"--crop", "40"});
  expect_refused(file("labels.npy").string() + ": expected labels from 0 to 1, got 3 in row 1", {"--classes", "2"});
  std::ofstream(file("plans.txt")) << "syncrun-resnet plans 1\ngpu NVIDIA H200\n";
  expect_refused("--plans: " + file("plans.txt").string() +
                     ", line 3: expected a whole line, since the last one is 'end', found ''",
                 {"--plans", file("plans.txt").string()});
  write_npy(file("images.npy"), "|u1", "(20, 28, 28, 3)", std::vector<std::uint8_t>(20 * 28 * 28 * 3));
  fs::remove(file("images_test.npy"));
  expect_refused(file("images.npy").string() +
                     ": expected images of 32 pixels a side or more (pack_images.py --size), got 28 x 28 pixels",
                 {"--evaluate-fraction", "0.5"});
}

TEST_F(Resnet, RefusesOnCpuDevicesWhatOnlyCudaDevicesHave) {
  for (const char* dtype : {"tf32", "bfloat16"}) {
    const CommandResult result = run({"--dtype", dtype});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.errors,
                HasSubstr("--dtype " + std::string(dtype) + ": expected CUDA devices, which have it, got cpu"));
    EXPECT_THAT(result.errors, HasSubstr(", which has float32 only"));
  }
}

/// Tests that compute. They require a network for CPU devices.
class ResnetOnCpus : public Resnet {
 protected:
  void SetUp() override {
    if (!has_cpu_network()) GTEST_SKIP() << "built without oneDNN";
  }
};

TEST_F(ResnetOnCpus, HasNoPlans) {
  const CommandResult result = run({"--plans", file("plans.txt").string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors,
              HasSubstr("--plans: expected CUDA devices, whose convolutions have plans to choose from, got "
                        "cpu0, where equal runs give the same bits without"));
  EXPECT_FALSE(fs::exists(file("plans.txt")));
}

TEST_F(ResnetOnCpus, PrintsALineNowAndThenAndOnePerEpoch) {
  const CommandResult result = run({"--epochs", "2", "--batch", "5", "--interval", "3", "--optimizer", "sgd"});
  const std::string interval =
      R"(epoch  [12]/2  step 3/4  loss \d+\.\d{6}  learning rate 0\.\d{6}  \d+\.\d images/s\n)";
  const std::string epoch =
      R"(epoch  [12]/2  loss \d+\.\d{6}  training accuracy \d+\.\d\d %  )"
      R"(evaluation loss \d+\.\d{6}  evaluation accuracy \d+\.\d\d %  \d+\.\d images/s  \d+\.\d\d s\n)";
  const std::regex lines(
      R"(ResNet-18, width 8, 36 x 36 pixels, 4 classes: 20 training rows, 8 to evaluate; 2 workers \(cpu0 to cpu1\)\n)"
      R"(sgd: learning rate up to 0\.00195312 in 0\.2 epochs, then down to 0; 4 steps of 5 rows per epoch\n)" +
      interval + epoch + interval + epoch + R"(evaluation accuracy: \d+\.\d\d %\n)");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(std::regex_match(result.output, lines)) << result.output;
}

TEST_F(ResnetOnCpus, TakesEveryOptimizer) {
  for (const char* name :
       {"sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adadelta", "adam", "adamw", "adamax"}) {
    SCOPED_TRACE(name);
    EXPECT_THAT(epochs_of(run({"--epochs", "1", "--batch", "7", "--optimizer", name})), SizeIs(1));
  }
}

TEST_F(ResnetOnCpus, GivesTheRuleAndTheNetworkTheNumbersOfTheCommandLine) {
  // One step per epoch. The first loss depends on the initial parameters only. The third is the first that depends on
  // the momentum.
  const auto losses = [&](const Words& more) {
    std::vector<double> all;
    const Words steps{"--epochs", "3", "--batch", "20", "--warmup-epochs", "0", "--lr", "0.01"};
    for (const EpochLine& epoch : epochs_of(run(with(steps, more)))) all.push_back(epoch.loss);
    all.resize(3);
    return all;
  };
  const auto usual = losses({});
  const auto without_momentum = losses({"--momentum", "0"});
  EXPECT_EQ(without_momentum, losses({"--optimizer", "sgd"}));
  EXPECT_EQ(without_momentum[1], usual[1]);
  EXPECT_NE(without_momentum[2], usual[2]);

  EXPECT_NE(losses({"--label-smoothing", "0.2"})[0], usual[0]);
  EXPECT_NE(losses({"--zero-init-residual"})[0], usual[0]);
  const auto decayed = losses({"--weight-decay", "5"});
  EXPECT_EQ(decayed[0], usual[0]);
  EXPECT_NE(decayed[1], usual[1]);

  const auto adam = [&](const char* name, const char* decay) {
    return losses({"--optimizer", name, "--weight-decay", decay});
  };
  EXPECT_EQ(adam("adam", "0"), adam("adamw", "0"));
  EXPECT_NE(adam("adam", "5"), adam("adam", "0"));
  EXPECT_NE(adam("adamw", "5"), adam("adamw", "0"));
  EXPECT_NE(adam("adamw", "5"), adam("adam", "5")) << "decay that the moments see is another";
}

TEST_F(ResnetOnCpus, WithSynchronisedNormalisationTheLossesAreThoseOfOneWorker) {
  write_pair(folder_.path(), "", 120, 36, 4);
  const auto line = [&](int workers, const Words& more) {
    const Words options{"--data", folder_.path().string(), "--epochs", "1", "--batch", "40"};
    const auto epochs = epochs_on(workers, with(kSmallNetwork, with(options, more)));
    return epochs.empty() ? EpochLine{} : epochs[0];
  };
  const EpochLine alone = line(1, {"--sync-norm"});
  ASSERT_GT(alone.loss, 0);
  for (const int workers : {2, 3}) {
    const EpochLine together = line(workers, {"--sync-norm"});
    EXPECT_NEAR(together.loss, alone.loss, 1e-4 * alone.loss) << workers << " workers";
    EXPECT_NEAR(together.evaluation_loss, alone.evaluation_loss, 1e-3 * alone.evaluation_loss) << workers << " workers";
  }
  EXPECT_GT(std::abs(line(2, {}).loss - alone.loss), 1e-3 * alone.loss) << "it does matter";
}

TEST_F(ResnetOnCpus, TrainsAlikeWhereABatchHasNoRowsForSomeWorkers) {
  const auto epochs = [&](int workers, const char* normalization) {
    const Words options{"--data", folder_.path().string(), "--epochs", "1", "--batch", "2", "--lr", "0.001"};
    return epochs_on(workers, with(kSmallNetwork, with(options, {normalization})));
  };
  EXPECT_THAT(epochs(3, "--no-mirror"), SizeIs(1));  // this option does not change the normalization
  const auto together = epochs(3, "--sync-norm");
  const auto alone = epochs(1, "--sync-norm");
  ASSERT_THAT(together, SizeIs(1));
  ASSERT_THAT(alone, SizeIs(1));
  EXPECT_NEAR(together[0].loss, alone[0].loss, 1e-3 * alone[0].loss);
  EXPECT_NEAR(together[0].evaluation_loss, alone[0].evaluation_loss, 1e-3 * alone[0].evaluation_loss);
}

TEST_F(ResnetOnCpus, ComputesAStepInSlicesAndAnEvaluationInAnyNumberAlike) {
  const auto epochs_in = [&](const char* slices) {
    return epochs_of(run({"--epochs", "1", "--batch", "20", "--slices", "3", "--eval-slices", slices}));
  };
  const auto whole = epochs_in("1");
  const auto in_slices = epochs_in("3");
  ASSERT_THAT(whole, SizeIs(1));
  ASSERT_THAT(in_slices, SizeIs(1));
  EXPECT_NEAR(in_slices[0].evaluation_loss, whole[0].evaluation_loss, 1e-4 * whole[0].evaluation_loss);
  EXPECT_EQ(in_slices[0].evaluation_accuracy, whole[0].evaluation_accuracy);
}

TEST_F(ResnetOnCpus, HoldsRowsBackToEvaluateOn) {
  const CommandResult result = run({"--epochs", "1", "--evaluate-fraction", "0.25"});
  EXPECT_THAT(result.output, HasSubstr("15 training rows, 5 to evaluate"));
  EXPECT_THAT(epochs_of(result), SizeIs(1));
}

TEST_F(ResnetOnCpus, SaysWhatHelpsWhereMemoryIsShort) {
  const Words command = resnet_on(1, {"--synthetic", "300", "--feed", "memory", "--crop", "128", "--classes", "10",
                                      "--depth", "50", "--batch", "300"});
  std::string line = "ulimit -d 600000; exec";  // KiB of each process's own memory
  for (const std::string& word : command) line += " '" + word + "'";
  const CommandResult result = syncrun::test::run_command({"/bin/sh", "-c", line});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(std::regex_search(
      result.errors, std::regex(R"(300 rows at once require \d+\.\d GiB of this device's memory \(std::bad_alloc\))")))
      << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("--slices N computes a step in N passes"));
}

TEST_F(ResnetOnCpus, LearnsTheDigits) {
  const TemporaryFolder folder;
  write_digits(folder.path());
  const auto epochs = epochs_on(2, {"--data", folder.path().string(), "--depth", "18", "--width", "16", "--epochs",
                                    "12", "--batch", "60", "--no-mirror"});
  ASSERT_THAT(epochs, SizeIs(12));
  EXPECT_GE(epochs.back().training_accuracy, 99);
  EXPECT_GE(epochs.back().evaluation_accuracy, 97);
}

TEST_F(ResnetOnCpus, TrainsTheSameFromFilesAndFromMemory) {
  const auto last = [&](const char* feed) {
    return epochs_of(run({"--epochs", "2", "--batch", "10", "--feed", feed, "--seed", "5"})).back().evaluation_loss;
  };
  EXPECT_EQ(last("mapped"), last("memory")) << "to the last digit";
}

TEST_F(ResnetOnCpus, EndsWithTheNameOfAFileThatIsTruncatedMeanwhileAndKeepsTheCheckpoint) {
  const Words saving{"--batch", "20", "--checkpoint", file("run").string()};
  std::jthread saboteur([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && !fs::exists(file("run") / "latest/manifest.txt")) std::this_thread::sleep_for(1ms);
    fs::resize_file(file("images.npy"), 1000);
  });
  const CommandResult result = run(with(saving, {"--epochs", "100000"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors,
              HasSubstr(file("images.npy").string() + ": expected the 77888 bytes that are mapped, found 1000"));
  EXPECT_THAT(result.errors, ::testing::Not(HasSubstr("--slices")));
  saboteur.request_stop();
  saboteur.join();
  write_pair(folder_.path(), "", 20, 36, 4);
  const CommandResult again = run(with(saving, {"--epochs", "1", "--resume"}));
  EXPECT_EQ(again.exit_code, 0) << again.errors;
}

TEST_F(ResnetOnCpus, TrainsOnRowsOnAnyNumberOfDevicesAlike) {
  const auto losses = [&](int workers, const Words& more) {
    const Words words{"--synthetic", "12", "--batch", "6", "--crop",   "32", "--classes",  "4",
                      "--depth",     "18", "--width", "8", "--epochs", "3",  "--sync-norm"};
    std::vector<double> all;
    for (const EpochLine& epoch : epochs_on(workers, with(words, more))) all.push_back(epoch.loss);
    return all;
  };
  const auto alone = losses(1, {});
  ASSERT_THAT(alone, SizeIs(3));
  EXPECT_LT(alone[2], alone[0]) << "six images are soon learnt";
  const auto together = losses(3, {});
  ASSERT_THAT(together, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(together[i], alone[i], 1e-3 * alone[i]) << "epoch " << i;
  EXPECT_THAT(losses(2, {"--slices", "2"}), SizeIs(3));
}

}  // namespace

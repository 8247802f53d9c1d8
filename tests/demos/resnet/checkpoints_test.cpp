// syncrun-resnet is interrupted and resumed. It must end with the parameters of a run without interruption.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/demos/resnet/npy_files.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class ResnetCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_network()) GTEST_SKIP() << "built without oneDNN";
    write_pair(folder_.path(), "", 120, 36, 4);
    write_pair(folder_.path(), "_test", 8, 36, 4);
  }

  /// Options of a run with a checkpoint in the folder `name`.
  Words options(const char* name, const Words& more = {}) const {
    return with({"--data", folder_.path().string(), "--depth", "18", "--width", "8", "--crop", "32", "--batch", "20",
                 "--epochs", "3", "--checkpoint", file(name).string()},
                more);
  }

  /// The files of these arrays in the checkpoint of a run.
  std::vector<std::string> saved(const char* name, const std::vector<const char*>& arrays) const {
    return saved_arrays(file(name), arrays);
  }

  bool is_after_epoch(const char* name, int epoch) const { return ::is_after_epoch(file(name), epoch); }

  /// Runs on two workers, and kills the whole run after it has saved the first epoch. Returns false if the run ended
  /// before that.
  bool run_and_kill(const char* name, const Words& more) const {
    return ::run_and_kill(resnet_on(2, options(name, more)), [&] { return is_after_epoch(name, 1); }) &&
           !is_after_epoch(name, 3);
  }

  fs::path file(const char* name) const { return folder_ / name; }

  TemporaryFolder folder_;
};

TEST_F(ResnetCheckpoint, ARunThatWasKilledAndGoesOnEndsAsOneThatWasNot) {
  struct Case {
    Words more;
    std::vector<const char*> state;
  };
  for (const auto& [more, state] : {Case{{"--optimizer", "momentum"}, {"optimizer.v"}},
                                    Case{{"--optimizer", "adam", "--sync-norm"}, {"optimizer.m", "optimizer.v"}}}) {
    SCOPED_TRACE(more[1]);
    const std::string whole = "whole " + more[1];
    const std::string killed = "killed " + more[1];
    EXPECT_THAT(epochs_on(2, options(whole.c_str(), more)), SizeIs(3));
    bool was_killed = false;
    for (int attempt = 0; attempt < 5 && !was_killed; ++attempt) {
      fs::remove_all(file(killed.c_str()));
      was_killed = run_and_kill(killed.c_str(), more);
    }
    ASSERT_TRUE(was_killed);
    const CommandResult resumed = run_resnet_on(2, options(killed.c_str(), with(more, {"--resume"})));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
    EXPECT_THAT(resumed.output, HasSubstr("going on after epoch "));
    EXPECT_THAT(resumed.output, HasSubstr(", from " + file(killed.c_str()).string() + "\n"));
    std::vector<const char*> arrays{"params", "statistics"};
    arrays.insert(arrays.end(), state.begin(), state.end());
    EXPECT_TRUE(saved(killed.c_str(), arrays) == saved(whole.c_str(), arrays)) << "to the last bit";
  }
}

/// A checkpoint contains the plans of a run on GPUs. A run on CPU devices has no use for them, but must keep them.
TEST_F(ResnetCheckpoint, KeepsThePlansOfARunOnGpus) {
  EXPECT_THAT(epochs_on(2, options("run", {"--epochs", "1"})), SizeIs(1));
  const fs::path manifest = fs::canonical(file("run") / "latest") / "manifest.txt";
  const std::string before = text_of(manifest);
  EXPECT_THAT(before, Not(HasSubstr("value plans"))) << "CPU devices have none";
  const std::string plans =
      "value plans syncrun-resnet plans 1\\ngpu A GPU\\nmultiprocessors 1\\ncudnn 9.19.0\\ncudnn-frontend 1.32.0\\n"
      "convolution pass=forward type=tf32 layout=nhwc epilogue=none rows=2 in=8 out=8 size=32 kernel=3 stride=1 "
      "padding=1 "
      "plan=eng1_k2=3 workspace=16\\nend\\n\n";
  const std::size_t place = before.find("value epoch");
  ASSERT_NE(place, std::string::npos);
  std::ofstream(manifest) << std::string(before).insert(place, plans);
  EXPECT_THAT(epochs_on(2, options("run", {"--epochs", "2", "--resume"})), SizeIs(1));
  EXPECT_TRUE(is_after_epoch("run", 2));
  EXPECT_THAT(text_of(file("run") / "latest/manifest.txt"), HasSubstr(plans));
}

TEST_F(ResnetCheckpoint, GoesOnWithAnotherNumberOfWorkers) {
  EXPECT_THAT(epochs_on(3, options("run", {"--epochs", "2"})), SizeIs(2));
  EXPECT_THAT(epochs_on(2, options("run", {"--resume"})), SizeIs(1));
  EXPECT_TRUE(is_after_epoch("run", 3));
  const CommandResult again = run_resnet_on(2, options("run", {"--resume"}));
  EXPECT_THAT(epochs_of(again), SizeIs(0)) << "nothing is left to do";
  EXPECT_THAT(again.output, HasSubstr("evaluation accuracy: "));
}

TEST_F(ResnetCheckpoint, GoesOnWithAnotherSizeOfABatchWhereTheLearningRateWas) {
  EXPECT_THAT(epochs_on(2, options("run", {"--epochs", "2"})), SizeIs(2));  // 6 steps per epoch
  const CommandResult result = run_resnet_on(2, options("run", {"--resume", "--epochs", "4", "--batch", "40", "--lr",
                                                                "0.1", "--warmup-epochs", "0", "--interval", "3"}));
  EXPECT_THAT(epochs_of(result), SizeIs(2));
  // The learning rate of the cosine schedule at the last steps of epochs 3 and 4, of 4 epochs with 3 steps each.
  EXPECT_THAT(result.output, HasSubstr("epoch  3/4  step 3/3"));
  EXPECT_THAT(result.output, HasSubstr("learning rate 0.025000 "));
  EXPECT_THAT(result.output, HasSubstr("learning rate 0.001704 "));
}

TEST_F(ResnetCheckpoint, IsSavedAfterEveryNthEpochAndTheLast) {
  EXPECT_THAT(epochs_on(2, options("run", {"--checkpoint-every", "2"})), SizeIs(3));
  EXPECT_TRUE(is_after_epoch("run", 3));
  EXPECT_THAT(epochs_on(2, options("other", {"--checkpoint-every", "2", "--epochs", "2"})), SizeIs(2));
  EXPECT_TRUE(is_after_epoch("other", 2));
}

TEST_F(ResnetCheckpoint, OfSomethingElseIsRefusedWithWhatDiffers) {
  EXPECT_THAT(epochs_on(2, options("run", {"--epochs", "1"})), SizeIs(1));
  const std::string run = file("run").string();
  const auto refused = [&](const Words& more) {
    const CommandResult result = run_resnet_on(2, options("run", more));
    EXPECT_EQ(result.exit_code, 2);
    return result.errors;
  };
  const std::string expected = "syncrun-resnet: --checkpoint: expected a checkpoint with ";
  EXPECT_THAT(refused({"--resume", "--width", "16"}),
              HasSubstr(expected +
                        "architecture 'ResNet-18, width 16, 32 x 32 pixels, 4 classes', got 'ResNet-18, width "
                        "8, 32 x 32 pixels, 4 classes' in " +
                        run));
  EXPECT_THAT(refused({"--resume", "--depth", "34"}), HasSubstr(expected + "architecture 'ResNet-34,"));
  EXPECT_THAT(refused({"--resume", "--optimizer", "adam"}),
              HasSubstr(expected + "optimizer 'adam', got 'momentum' in " + run));
  EXPECT_THAT(refused({"--resume", "--seed", "2"}), HasSubstr(expected + "seed '2', got '1' in " + run));
  EXPECT_THAT(refused({"--resume", "--evaluate-fraction", "0.5"}),
              HasSubstr(expected + "rows '60', got '120' in " + run));
  EXPECT_THAT(refused({}), HasSubstr("--checkpoint: expected a folder without a checkpoint, got " + run +
                                     " (--resume goes on from what is there)"));
  fs::remove_all(file("run"));
  EXPECT_THAT(refused({"--resume"}), HasSubstr("--resume: expected a checkpoint in " + run + ", got none"));
}

TEST_F(ResnetCheckpoint, StaysWhereTheLossIsNotFinite) {
  EXPECT_THAT(epochs_on(2, options("run", {"--epochs", "1"})), SizeIs(1));
  const std::vector<std::string> before = saved("run", {"params"});
  // This weight decay multiplies the parameters by about a million in each step.
  const CommandResult result = run_resnet_on(2, options("run", {"--resume", "--epochs", "9", "--lr", "999",
                                                                "--weight-decay", "1000", "--warmup-epochs", "0"}));
  EXPECT_EQ(result.exit_code, 1);
  const std::regex message(R"(the loss is -?(nan|inf) at step \d+ of epoch \d+: a smaller --lr or more)");
  EXPECT_TRUE(std::regex_search(result.errors, message)) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("the last checkpoint is in " + file("run").string()));
  EXPECT_TRUE(is_after_epoch("run", 1));
  EXPECT_EQ(saved("run", {"params"}), before);
}

TEST_F(ResnetCheckpoint, StaysWhereTheLastUpdateOfAnEpochIsNotFinite) {
  // The first case has one step per epoch. After it, activations overflow in the evaluation. The second case has three
  // steps per epoch and no evaluation. In the last step, the moments for the running statistics overflow. No loss of
  // the training shows either.
  const Words one{"--batch", "120"};
  const Words three{"--synthetic", "60",     "--feed", "memory",  "--batch", "20",      "--classes",
                    "4",           "--crop", "32",     "--depth", "18",      "--width", "8"};
  const auto expect_kept = [&](const char* name, const Words& words, const std::string& message) {
    EXPECT_THAT(epochs_of(run_resnet_on(2, with(words, {"--epochs", "1"}))), SizeIs(1));
    const std::vector<std::string> before = saved(name, {"params", "statistics"});
    const CommandResult result = run_resnet_on(
        2, with(words, {"--resume", "--epochs", "2", "--lr", "999", "--weight-decay", "1000", "--warmup-epochs", "0"}));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_TRUE(std::regex_search(result.errors, std::regex(message))) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("the last checkpoint is in " + file(name).string()));
    EXPECT_EQ(saved(name, {"params", "statistics"}), before);
  };
  expect_kept("evaluated", options("evaluated", one),
              R"(the evaluation loss is -?(nan|inf) after step 1 of epoch 2: a smaller --lr)");
  expect_kept("not", with(three, {"--checkpoint", file("not").string()}),
              "what was learnt is not finite after step 3 of epoch 2: a smaller --lr");
}

}  // namespace

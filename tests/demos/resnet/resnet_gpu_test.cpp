// syncrun-resnet on GPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

class ResnetOnGpus : public demos::testing::OnGpu {
 protected:
  ResnetOnGpus() { write_digits(folder_.path()); }

  Words options(const Words& more) const {
    return with({"--data", folder_.path().string(), "--depth", "18", "--no-mirror"}, more);
  }

  TemporaryFolder folder_;
};

TEST_F(ResnetOnGpus, LearnsTheDigitsInAnyType) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const CommandResult result =
        syncrun::test::run_command(resnet_on("cuda0", options({"--dtype", dtype, "--epochs", "20", "--batch", "60"})));
    const auto epochs = epochs_of(result);
    ASSERT_EQ(epochs.size(), 20U) << result.errors;
    EXPECT_GE(epochs.back().training_accuracy, 99);
    EXPECT_GE(epochs.back().evaluation_accuracy, 97);
  }
}

TEST_F(ResnetOnGpus, ComputesAStepInSlicesAndAnEvaluationInAnyNumberAlike) {
  const auto epochs_in = [&](const char* slices) {
    const Words words{"--epochs", "1", "--batch", "360", "--lr", "0.001", "--slices", "3", "--eval-slices", slices};
    return epochs_of(syncrun::test::run_command(resnet_on("cuda0", options(words))));
  };
  const auto whole = epochs_in("1");
  const auto in_slices = epochs_in("5");
  ASSERT_EQ(whole.size(), 1U);
  ASSERT_EQ(in_slices.size(), 1U);
  EXPECT_TRUE(std::isfinite(whole[0].loss));
  EXPECT_NEAR(in_slices[0].evaluation_loss, whole[0].evaluation_loss, 1e-2 * whole[0].evaluation_loss);
  EXPECT_NEAR(in_slices[0].evaluation_accuracy, whole[0].evaluation_accuracy, 1);
}

TEST_F(ResnetOnGpus, SaysHowMuchAStepWantsWhereMemoryIsShort) {
  const Words words{"--synthetic", "2048", "--batch", "2048", "--depth", "152"};
  const CommandResult result = syncrun::test::run_command(resnet_on("cuda0", words));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, ::testing::ContainsRegex("2048 rows at once require [0-9]+\\.[0-9] GiB of this device's"));
  EXPECT_THAT(result.errors, ::testing::HasSubstr("if memory is short: --slices N computes a step in N passes"));
}

class ResnetOnTwoGpus : public demos::testing::OnGpus<2> {};

TEST_F(ResnetOnTwoGpus, TrainTheParametersOfOneWithSynchronisedNormalisation) {
  EXPECT_LT(distance_of_trained_params("cuda0,cuda1", "cuda0", {.learning_rate = kTestedRate}), kSameParams);
  const TrainedNetwork alone{.devices = Normalised::alone, .learning_rate = kTestedRate};
  EXPECT_GT(distance_of_trained_params("cuda0,cuda1", "cuda0", alone), kOtherParams) << "nothing was to be seen";
}

/// Uses the defaults for larger networks. Each device normalises by its own rows, and gradients are averaged in buckets
/// during the backward pass.
TEST_F(ResnetOnTwoGpus, TrainInBucketsTheParametersThatTheyTrainWithout) {
  const TrainedNetwork in_buckets{
      .devices = Normalised::alone, .others = Normalised::alone, .bucket_mib = "0.5", .learning_rate = kTestedRate};
  EXPECT_LT(distance_of_trained_params("cuda0,cuda1", "cuda0,cuda1", in_buckets), kSameParams);
  EXPECT_GT(distance_of_trained_params("cuda0", "cuda0,cuda1", in_buckets), kOtherParams) << "nothing was to be seen";
}

}  // namespace

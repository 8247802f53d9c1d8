// syncrun-resnet on GPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/resnet_run.hpp"
#include "tests/demos/temporary_folder.hpp"

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
        run_command(resnet_on("cuda0", options({"--dtype", dtype, "--epochs", "20", "--batch", "60"})));
    const auto epochs = epochs_of(result);
    ASSERT_EQ(epochs.size(), 20U) << result.errors;
    EXPECT_GE(epochs.back().training_accuracy, 99);
    EXPECT_GE(epochs.back().evaluation_accuracy, 97);
  }
}

TEST_F(ResnetOnGpus, ComputesAStepInSlices) {
  const auto epochs =
      epochs_of(run_command(resnet_on("cuda0", options({"--epochs", "1", "--batch", "90", "--slices", "3"}))));
  ASSERT_EQ(epochs.size(), 1U);
  EXPECT_TRUE(std::isfinite(epochs[0].loss));
}

TEST_F(ResnetOnGpus, TwoWithSynchronisedNormalisationTrainTheParametersOfOne) {
  int gpus = 0;
  demos::check_cuda(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  if (gpus < 2) GTEST_SKIP() << "one GPU";
  EXPECT_LT(distance_of_trained_params("cuda0,cuda1", "cuda0"), 1e-3);
  EXPECT_GT(distance_of_trained_params("cuda0,cuda1", "cuda0", Normalised::alone), 3e-3) << "nothing was to be seen";
}

}  // namespace

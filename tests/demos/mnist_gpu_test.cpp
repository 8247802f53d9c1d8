// syncrun-mnist on GPUs. Its losses must be those of CPU devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/demos/cuda_support.hpp"
#include "tests/demos/mnist_run.hpp"

namespace {

constexpr double kFloat32Tolerance = 1e-3;
constexpr double kFloat64Tolerance = 1e-9;

template <int kGpus>
class MnistOn : public demos::testing::OnGpus<kGpus> {
 protected:
  /// Compares the losses of one CPU device with those of the GPUs, for either input.
  static void expect_losses_of_the_cpu(const Words& options, const std::string& gpus, double tolerance) {
    const std::vector<Losses> expected = losses_on(1, options);
    ASSERT_FALSE(expected.empty());
    for (const char* input : {"host", "device"}) {
      SCOPED_TRACE(gpus + ", input " + input);
      expect_equal(expected, losses_under({"--devices", gpus}, with(options, {"--input", input})), tolerance);
    }
  }
};

class MnistOnGpus : public MnistOn<1> {};
class MnistOnTwoGpus : public MnistOn<2> {};

TEST_F(MnistOnGpus, HasTheLossesOfTheCpuInFloat32) {
  expect_losses_of_the_cpu({"--epochs", "3"}, "cuda0", kFloat32Tolerance);
}

TEST_F(MnistOnGpus, HasTheLossesOfTheCpuInFloat64WithDropout) {
  expect_losses_of_the_cpu({"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float64", "--epochs", "3"}, "cuda0",
                           kFloat64Tolerance);
}

TEST_F(MnistOnGpus, HasTheLossesOfTheCpuInTheCnn) {
#ifdef DEMOS_HAVE_CUDNN
  expect_losses_of_the_cpu({"--model", "cnn", "--dtype", "float64", "--epochs", "1"}, "cuda0", kFloat64Tolerance);
  expect_losses_of_the_cpu({"--model", "cnn", "--epochs", "3"}, "cuda0", kFloat32Tolerance);
#else
  const CommandResult result = run_mnist_under({"--devices", "cuda0"}, {"--model", "cnn"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.errors, ::testing::HasSubstr("needs cuDNN"));
#endif
}

TEST_F(MnistOnGpus, HasTheLossesOfItsSerialTwin) {
  const auto expect_losses_of_the_twin = [](const Words& options, double tolerance) {
    for (const char* input : {"host", "device"}) {
      SCOPED_TRACE(std::string("input ") + input);
      const Words with_input = with(options, {"--input", input});
      const std::vector<Losses> losses = losses_of(with({MNIST_SERIAL_CUDA_PROGRAM}, with_input));
      ASSERT_FALSE(losses.empty());
      expect_equal(losses, losses_under({"--devices", "cuda0"}, with_input), tolerance);
    }
  };
  expect_losses_of_the_twin({"--model", "custom_mlp:2,64,0.2,0.5", "--dtype", "float64", "--epochs", "3"},
                            kFloat64Tolerance);
  expect_losses_of_the_twin({"--epochs", "3"}, kFloat32Tolerance);
#ifdef DEMOS_HAVE_CUDNN
  expect_losses_of_the_twin({"--model", "cnn", "--dtype", "float64", "--epochs", "1"}, kFloat64Tolerance);
#endif
}

TEST_F(MnistOnGpus, LearnsAsWellInTf32) {
  const std::vector<Losses> full = losses_under({"--devices", "cuda0"}, {"--epochs", "3"});
  const std::vector<Losses> tf32 = losses_under({"--devices", "cuda0"}, {"--epochs", "3", "--dtype", "tf32"});
  constexpr double kAlmost = 0.05;
  expect_equal(full, tf32, kAlmost);
}

TEST_F(MnistOnTwoGpus, HaveTheLossesOfTheCpu) {
  expect_losses_of_the_cpu({"--epochs", "3"}, "cuda0,cuda1", kFloat32Tolerance);
  expect_losses_of_the_cpu({"--model", "custom_mlp:1,32,0,0.5", "--dtype", "float64", "--epochs", "1", "--batch-size",
                            // Some shares have no rows.
                            "3"},
                           "cuda0,cuda1", kFloat64Tolerance);
}

}  // namespace

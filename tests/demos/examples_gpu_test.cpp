// The examples that have bodies for CUDA devices, on such devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/demos/cuda_support.hpp"
#include "tests/support/command_run.hpp"

namespace {

using syncrun::test::CommandResult;

class ExamplesOnGpus : public demos::testing::OnGpu, public ::testing::WithParamInterface<const char*> {
 protected:
  static void expect_as_expected(const std::string& devices) {
    const std::string program = std::string(EXAMPLES_DIRECTORY "/example_") + GetParam();
    const CommandResult result = syncrun::test::run_command({SYNCRUN_COMMAND, "--devices", devices, program});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_THAT(result.output, ::testing::EndsWith("\nas expected\n"));
  }
};

TEST_P(ExamplesOnGpus, AreAsExpectedOnOne) {
  if (GetParam() == std::string("shared_variables")) GTEST_SKIP() << "this example requires two devices";
  expect_as_expected("cuda0");
}

TEST_P(ExamplesOnGpus, AreAsExpectedOnTwo) {
  int count = 0;
  demos::check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count < 2) GTEST_SKIP() << "needs two GPUs, and there is one";
  expect_as_expected("cuda0,cuda1");
}

INSTANTIATE_TEST_SUITE_P(All, ExamplesOnGpus,
                         ::testing::Values("batch_and_minibatch", "batch_s", "reductions_and_slices",
                                           "shared_variables"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace

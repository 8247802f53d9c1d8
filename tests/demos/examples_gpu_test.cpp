// The examples that have bodies for CUDA devices, on such devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/demos/cuda_support.hpp"
#include "tests/support/command_run.hpp"

namespace {

using syncrun::test::CommandResult;

void expect_as_expected(const std::string& name, const std::string& devices) {
  const std::string program = EXAMPLES_DIRECTORY "/example_" + name;
  const CommandResult result = syncrun::test::run_command({SYNCRUN_COMMAND, "--devices", devices, program});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, ::testing::EndsWith("\nas expected\n"));
}

class ExamplesOnGpus : public demos::testing::OnGpu {};
TEST_F(ExamplesOnGpus, AreAsExpected) {
  for (const char* name : {"batch_and_minibatch", "batch_s", "reductions_and_slices"}) {
    expect_as_expected(name, "cuda0");
  }
}

class ExamplesOnTwoGpus : public demos::testing::OnGpus<2> {};
TEST_F(ExamplesOnTwoGpus, AreAsExpected) {
  for (const char* name : {"batch_and_minibatch", "batch_s", "reductions_and_slices", "shared_variables"}) {
    expect_as_expected(name, "cuda0,cuda1");
  }
#ifdef EXAMPLES_HAVE_TORCH
  expect_as_expected("pipeline", "cuda0,cuda1");
#endif
}

}  // namespace

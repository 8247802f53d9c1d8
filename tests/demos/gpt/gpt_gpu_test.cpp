// syncrun-gpt on GPUs. The losses are those of CPU devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/demos/gpt/gpt_run.hpp"
#include "tests/support/gpus.hpp"
#include "tests/support/temporary_folder.hpp"

namespace gpt::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GptOnGpus : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int present = syncrun::test::gpus_present();
    if (GetParam() > present) GTEST_SKIP() << GetParam() << " GPUs wanted, " << present << " present";
  }
  static Words options() {
    return with(small(), {"--max-iters", "20", "--warmup-iters", "2", "--max-new-tokens", "0"});
  }
  static std::vector<double> losses(const Words& more = {}) {
    return losses_on(GetParam(), with(options(), more), Kind::cuda);
  }
};
INSTANTIATE_TEST_SUITE_P(Gpus, GptOnGpus, testing::Values(1, 2),
                         [](const auto& number) { return std::to_string(number.param); });

TEST_P(GptOnGpus, TheLossesAreThoseOfCpuDevices) {
  const auto expected = losses_on(1, options());
  expect_near(losses(), expected, 1e-4);
  expect_near(losses({"--sharded-state"}), expected, 1e-4);
  expect_near(losses({"--checkpoint-activations"}), expected, 1e-4);
  expect_near(losses({"--sharded"}), expected, 1e-4);
  expect_near(losses({"--sharded", "--checkpoint-activations", "--slices", "2"}), expected, 1e-4);
  expect_near(losses({"--slices", "3"}), expected, 1e-4);
  expect_near(losses({"--dtype", "bfloat16"}), expected, 0.01);
}

TEST_P(GptOnGpus, DropoutRunsWithoutAGraphAndIsTheSameAgain) {
  const Words dropped = with(options(), {"--dropout", "0.2"});
  const CommandResult result = run_gpt_on(GetParam(), dropped, Kind::cuda);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("runs without a CUDA graph"));
  EXPECT_EQ(losses_on(GetParam(), dropped, Kind::cuda), losses_on(GetParam(), dropped, Kind::cuda));
}

TEST_P(GptOnGpus, ContinuesWithTheSameBits) {
  expect_resumes_equally(GetParam(), {}, Kind::cuda);
  expect_resumes_equally(GetParam(), {"--dtype", "bfloat16", "--sharded-state", "--slices", "2"}, Kind::cuda);
  expect_resumes_equally(GetParam(), {"--dtype", "bfloat16", "--sharded", "--checkpoint-activations"}, Kind::cuda);
}

TEST_P(GptOnGpus, GivesTheSameBitsForLongBlocksOnRequest) {
  const Words longer =
      with(options(), {"--block-size", "1024", "--dtype", "bfloat16", "--eval-iters", "1", "--deterministic"});
  const auto first = losses_on(GetParam(), longer, Kind::cuda);
  for (int run = 0; run < 3; ++run) EXPECT_EQ(losses_on(GetParam(), longer, Kind::cuda), first);
}

TEST_P(GptOnGpus, ReplaysItsStepsAndWritesAText) {
  const CommandResult result =
      run_gpt_on(GetParam(), with(options(), {"--max-new-tokens", "20", "--prompt", "In"}), Kind::cuda);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.errors, Not(HasSubstr("without a CUDA graph")));
  EXPECT_EQ(sample_in(result.output).size(), 2U + 20U);
  EXPECT_THAT(result.output, HasSubstr(" TFLOP/s"));
}

}  // namespace
}  // namespace gpt::test

#include "demos/gpt/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace gpt {
namespace {

constexpr int kDraws = 20'000;

/// How often each token is chosen.
std::vector<double> frequencies(const std::vector<float>& scores, const SamplingOptions& options) {
  std::vector<double> counts(scores.size());
  for (int i = 0; i < kDraws; ++i) counts.at(static_cast<std::size_t>(choose_token(scores, options, 5, i))) += 1;
  for (double& count : counts) count /= kDraws;
  return counts;
}

const std::vector<float> kScores{0.0F, std::log(4.0F), std::log(2.0F), std::log(3.0F)};

TEST(GptSampling, ChoosesTokensByTheirProbabilities) {
  const auto got = frequencies(kScores, {.temperature = 1, .top_k = 100});
  const std::vector<double> expected{0.1, 0.4, 0.2, 0.3};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 0.02) << i;
}

TEST(GptSampling, ChoosesLikelyTokensMoreOftenAtALowerTemperature) {
  const auto got = frequencies(kScores, {.temperature = 0.5, .top_k = 100});
  const std::vector<double> expected{1.0 / 30, 16.0 / 30, 4.0 / 30, 9.0 / 30};  // the squares
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 0.02) << i;
}

TEST(GptSampling, ChoosesOnlyAmongTheMostLikely) {
  const auto got = frequencies(kScores, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(got[0] + got[2], 0);
  EXPECT_NEAR(got[1], 4.0 / 7, 0.02);
}

TEST(GptSampling, TakesTheMostLikelyAtTemperatureZero) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(choose_token(kScores, {.temperature = 0}, 1, i), 1);
}

TEST(GptSampling, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> equal(1000, 1.0F);
  const SamplingOptions options{.temperature = 1, .top_k = 1000};
  EXPECT_EQ(choose_token(equal, options, 1, 0), choose_token(equal, options, 1, 0));
  EXPECT_NE(choose_token(equal, options, 1, 0), choose_token(equal, options, 1, 1));
  EXPECT_NE(choose_token(equal, options, 1, 0), choose_token(equal, options, 2, 0));
}

}  // namespace
}  // namespace gpt

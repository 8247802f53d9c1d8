#include "demos/gpt/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace gpt {
namespace {

constexpr int kDraws = 20'000;

const std::vector<float> kScores{0.0F, std::log(4.0F), std::log(2.0F), std::log(3.0F)};

TEST(GptSampling, ChoosesTokensByTheirProbabilitiesAtATemperatureAmongTheMostLikely) {
  struct Case {
    SamplingOptions options;
    std::vector<double> expected;
  };
  for (const auto& [options, expected] :
       {Case{{.temperature = 1, .top_k = 100}, {0.1, 0.4, 0.2, 0.3}},
        Case{{.temperature = 0.5, .top_k = 100}, {1.0 / 30, 16.0 / 30, 4.0 / 30, 9.0 / 30}},  // the squares
        Case{{.temperature = 1, .top_k = 2}, {0, 4.0 / 7, 0, 3.0 / 7}}}) {
    std::vector<int> counts(expected.size());
    for (int i = 0; i < kDraws; ++i) ++counts.at(static_cast<std::size_t>(choose_token(kScores, options, 5, i)));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(counts[i]) / kDraws, expected[i], expected[i] == 0 ? 0 : 0.02) << i;
    }
  }
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

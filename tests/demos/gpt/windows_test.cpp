#include "demos/gpt/windows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace gpt {
namespace {

TEST(GptWindows, OfAStepAreAFunctionOfItsSeedAndNumber) {
  const WindowRange range{.tokens = 100'000, .length = 65};
  const auto windows = random_windows(range, 32, 7, 3);
  EXPECT_EQ(windows, random_windows(range, 32, 7, 3));
  EXPECT_NE(windows, random_windows(range, 32, 7, 4));
  EXPECT_NE(windows, random_windows(range, 32, 8, 3));
  // A larger batch only adds windows.
  const auto more = random_windows(range, 40, 7, 3);
  EXPECT_TRUE(std::equal(windows.begin(), windows.end(), more.begin()));
}

TEST(GptWindows, ReachEveryPlaceAboutEquallyOften) {
  const WindowRange range{.tokens = 13, .length = 4};  // places 0 to 9
  std::vector<int> counts(10);
  constexpr int kDraws = 10'000;
  for (int step = 0; step < kDraws / 100; ++step) {
    for (const std::int64_t start : random_windows(range, 100, 1, step)) ++counts.at(static_cast<std::size_t>(start));
  }
  // The standard deviation of a count is 30.
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 10, 150);
}

TEST(GptWindows, ForAnEvaluationCoverTheTextOrAreSpreadOverItUpToALimit) {
  EXPECT_EQ(random_windows({.tokens = 9, .length = 9}, 3, 1, 0), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(spread_windows({.tokens = 9, .length = 9}, 0), (std::vector<std::int64_t>{0}));
  // Windows of five tokens predict four each: 1 to 4, 5 to 8, 9 to 12.
  EXPECT_EQ(spread_windows({.tokens = 13, .length = 5}, 0), (std::vector<std::int64_t>{0, 4, 8}));
  EXPECT_EQ(spread_windows({.tokens = 12, .length = 5}, 0), (std::vector<std::int64_t>{0, 4}));
  const WindowRange range{.tokens = 1001, .length = 11};  // 100 windows
  EXPECT_EQ(spread_windows(range, 4), (std::vector<std::int64_t>{0, 250, 500, 750}));
  EXPECT_EQ(spread_windows(range, 1000), spread_windows(range, 0));
}

}  // namespace
}  // namespace gpt

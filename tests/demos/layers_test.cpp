#include "demos/common/layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace demos {
namespace {

std::vector<std::int64_t> row_ids(std::int64_t first, std::size_t count) {
  std::vector<std::int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<double> mask(const std::vector<std::int64_t>& rows, std::size_t units, double rate, DropoutKey key) {
  const std::vector<double> ones(rows.size() * units, 1);
  std::vector<double> y(ones.size());
  dropout(rows, units, rate, key, ones.data(), y.data());
  return y;
}

TEST(Dropout, MaskIsAnotherForEverySeedStepLayerAndRow) {
  const std::vector<double> mask0 = mask({5}, 64, 0.5, {.seed = 1, .step = 2, .layer = 3});
  EXPECT_NE(mask0, mask({5}, 64, 0.5, {.seed = 9, .step = 2, .layer = 3}));
  EXPECT_NE(mask0, mask({5}, 64, 0.5, {.seed = 1, .step = 9, .layer = 3}));
  EXPECT_NE(mask0, mask({5}, 64, 0.5, {.seed = 1, .step = 2, .layer = 9}));
  EXPECT_NE(mask0, mask({9}, 64, 0.5, {.seed = 1, .step = 2, .layer = 3}));
  EXPECT_NE(mask0, mask({5 + (std::int64_t{1} << 32)}, 64, 0.5, {.seed = 1, .step = 2, .layer = 3}));
}

TEST(Dropout, DropsAtItsRateAndKeepsTheMean) {
  const std::vector<double> y = mask(row_ids(0, 1000), 100, 0.2, {.seed = 1, .step = 0, .layer = 0});
  const auto dropped = static_cast<double>(std::count(y.begin(), y.end(), 0.0));
  const auto count = static_cast<double>(y.size());
  EXPECT_NEAR(dropped / count, 0.2, 0.01);
  EXPECT_NEAR(std::accumulate(y.begin(), y.end(), 0.0) / count, 1, 0.01);
}

TEST(SoftmaxCrossEntropy, IsTheLogarithmForEqualLogitsFiniteForHugeOnesAndRefusesLabelsThatAreNoClass) {
  const std::vector<double> equal(8, 3);
  const std::vector<std::uint8_t> labels{0, 3};
  const Outcome outcome = softmax_cross_entropy<double>(labels, 4, equal.data(), nullptr);
  EXPECT_NEAR(outcome.mean_loss, std::log(4), 1e-15);
  EXPECT_EQ(outcome.correct, 1) << "the first of equal logits is the answer";
  EXPECT_THROW(softmax_cross_entropy<double>(labels, 3, equal.data(), nullptr), std::out_of_range);

  const std::vector<float> huge{1e30F, -1e30F, 0, -3e38F, -3e38F, -3e38F};
  std::vector<float> dlogits(6);
  const std::vector<std::uint8_t> first_two{0, 1};
  EXPECT_NEAR(softmax_cross_entropy(first_two, 3, huge.data(), dlogits.data()).mean_loss, std::log(3) / 2, 1e-6);
  EXPECT_TRUE(std::all_of(dlogits.begin(), dlogits.end(), [](float d) { return std::isfinite(d); }));
}

}  // namespace
}  // namespace demos

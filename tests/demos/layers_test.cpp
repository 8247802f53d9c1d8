#include "demos/common/layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace demos {
namespace {

TEST(Dense, AddsTheBiasToTheProductAndMayCutOffNegativeOutputs) {
  const std::vector<double> x{1, 2}, weights{1, 10, 100, -1000}, bias{0.5, -0.5};
  std::vector<double> y(2);
  dense_forward(1, {2, 2}, Activation::kNone, x.data(), weights.data(), bias.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{201.5, -1990.5}));
  dense_forward(1, {2, 2}, Activation::kRelu, x.data(), weights.data(), bias.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{201.5, 0}));
}

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

TEST(SoftmaxCrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirNumber) {
  const std::vector<double> logits(8, 3);
  const std::vector<std::uint8_t> labels{0, 3};
  const Outcome outcome = softmax_cross_entropy<double>(labels, 4, logits.data(), nullptr);
  EXPECT_NEAR(outcome.mean_loss, std::log(4), 1e-15);
  EXPECT_EQ(outcome.correct, 1) << "the first of equal logits is the answer";
}

TEST(SoftmaxCrossEntropy, StaysFiniteForHugeLogits) {
  const std::vector<float> logits{1e30F, -1e30F, 0, -3e38F, -3e38F, -3e38F};
  const std::vector<std::uint8_t> labels{0, 1};
  std::vector<float> dlogits(6);
  const Outcome outcome = softmax_cross_entropy(labels, 3, logits.data(), dlogits.data());
  EXPECT_NEAR(outcome.mean_loss, std::log(3) / 2, 1e-6);
  EXPECT_TRUE(std::all_of(dlogits.begin(), dlogits.end(), [](float d) { return std::isfinite(d); }));
}

TEST(SoftmaxCrossEntropy, ShowsAFailedTrainingAsNan) {
  const std::vector<double> logits(3, std::numeric_limits<double>::quiet_NaN());
  const std::vector<std::uint8_t> labels{1};
  EXPECT_TRUE(std::isnan(softmax_cross_entropy<double>(labels, 3, logits.data(), nullptr).mean_loss));
}

TEST(SoftmaxCrossEntropy, RefusesLabelsThatAreNoClass) {
  const std::vector<double> logits(3);
  const std::vector<std::uint8_t> labels{3};
  EXPECT_THROW(softmax_cross_entropy<double>(labels, 3, logits.data(), nullptr), std::out_of_range);
}

}  // namespace
}  // namespace demos

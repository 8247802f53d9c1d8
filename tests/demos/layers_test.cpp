#include "demos/common/layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/demos/gradient_check.hpp"

namespace demos {
namespace {

using testing::dot;
using testing::expect_gradient;
using testing::noise;

TEST(Dense, AddsTheBiasToTheProduct) {
  const std::vector<double> x{1, 2}, weights{1, 10, 100, 1000}, bias{0.5, -0.5};
  std::vector<double> y(2);
  dense_forward(1, {2, 2}, Activation::kNone, x.data(), weights.data(), bias.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{201.5, 2009.5}));
}

TEST(Dense, WithReluCutsOffNegativeOutputs) {
  const std::vector<double> x{1}, weights{1, -1}, bias{0.5, 0.5};
  std::vector<double> y(2);
  dense_forward(1, {1, 2}, Activation::kRelu, x.data(), weights.data(), bias.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{1.5, 0}));
}

class DenseGradient : public ::testing::TestWithParam<Activation> {};

TEST_P(DenseGradient, MatchesFiniteDifferences) {
  constexpr std::size_t kRows = 3;
  constexpr DenseShape kShape{4, 5};
  std::vector<double> x = noise(12, 1), weights = noise(20, 2), bias = noise(5, 3), y(15);
  const std::vector<double> direction = noise(15, 4);
  const auto loss = [&] {
    dense_forward(kRows, kShape, GetParam(), x.data(), weights.data(), bias.data(), y.data());
    return dot(y, direction);
  };
  loss();
  std::vector<double> dy = direction, dweights(20, 99), dbias(5, 99), dx(12, 99);
  if (GetParam() == Activation::kRelu) relu_backward(y.size(), y.data(), dy.data());
  dense_backward(kRows, kShape, x.data(), weights.data(), dy.data(), dweights.data(), dbias.data(), dx.data());
  expect_gradient(weights, dweights, loss);
  expect_gradient(bias, dbias, loss);
  expect_gradient(x, dx, loss);
}

INSTANTIATE_TEST_SUITE_P(BothActivations, DenseGradient, ::testing::Values(Activation::kNone, Activation::kRelu));

TEST(Dense, OfNoRowsHasZeroGradients) {
  const std::vector<double> weights(6, 1);
  std::vector<double> dweights(6, 99), dbias(3, 99);
  dense_backward<double>(0, {2, 3}, nullptr, weights.data(), nullptr, dweights.data(), dbias.data(), nullptr);
  EXPECT_EQ(dweights, std::vector<double>(6, 0));
  EXPECT_EQ(dbias, std::vector<double>(3, 0));
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

TEST(Dropout, MaskDoesNotDependOnHowRowsAreDivided) {
  constexpr std::size_t kUnits = 13;
  const DropoutKey key{.seed = 7, .step = 3, .layer = 1};
  const std::vector<double> whole = mask(row_ids(100, 10), kUnits, 0.5, key);
  std::vector<double> parts;
  for (const auto& rows : {row_ids(100, 3), row_ids(103, 0), row_ids(103, 6), row_ids(109, 1)}) {
    const std::vector<double> part = mask(rows, kUnits, 0.5, key);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, whole);
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

TEST(Dropout, OfRateZeroChangesNothing) {
  EXPECT_EQ(mask(row_ids(0, 4), 5, 0, {.seed = 1, .step = 0, .layer = 0}), std::vector<double>(20, 1));
}

TEST(Dropout, IsItsOwnBackwardPass) {
  const std::vector<std::int64_t> rows{4, 2};
  const DropoutKey key{.seed = 1, .step = 2, .layer = 0};
  std::vector<double> x = noise(14, 1), y(14), dx(14);
  const std::vector<double> direction = noise(14, 2);
  const auto loss = [&] {
    dropout(rows, 7, 0.4, key, x.data(), y.data());
    return dot(y, direction);
  };
  dropout(rows, 7, 0.4, key, direction.data(), dx.data());
  expect_gradient(x, dx, loss);
}

TEST(SoftmaxCrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirNumber) {
  const std::vector<double> logits(8, 3);
  const std::vector<std::uint8_t> labels{0, 3};
  const Outcome outcome = softmax_cross_entropy<double>(labels, 4, logits.data(), nullptr);
  EXPECT_NEAR(outcome.mean_loss, std::log(4), 1e-15);
  EXPECT_EQ(outcome.correct, 1) << "the first of equal logits is the answer";
}

TEST(SoftmaxCrossEntropy, GradientMatchesFiniteDifferences) {
  const std::vector<std::uint8_t> labels{2, 0, 4};
  std::vector<double> logits = noise(15, 1), dlogits(15);
  const auto loss = [&] { return softmax_cross_entropy<double>(labels, 5, logits.data(), nullptr).mean_loss; };
  softmax_cross_entropy(labels, 5, logits.data(), dlogits.data());
  expect_gradient(logits, dlogits, loss);
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

TEST(SoftmaxCrossEntropy, OfNoRowsIsZero) {
  const Outcome outcome = softmax_cross_entropy<double>({}, 3, nullptr, nullptr);
  EXPECT_EQ(outcome.mean_loss, 0);
  EXPECT_EQ(outcome.correct, 0);
}

TEST(SoftmaxCrossEntropy, RefusesLabelsThatAreNoClass) {
  const std::vector<double> logits(3);
  const std::vector<std::uint8_t> labels{3};
  EXPECT_THROW(softmax_cross_entropy<double>(labels, 3, logits.data(), nullptr), std::out_of_range);
}

}  // namespace
}  // namespace demos

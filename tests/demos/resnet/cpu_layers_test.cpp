// The layers of a residual network on CPU devices, each compared with its definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "demos/resnet/network/cpu/cpu_convolution.hpp"
#include "demos/resnet/network/cpu/cpu_head.hpp"
#include "demos/resnet/network/cpu/cpu_normalization.hpp"
#include "demos/resnet/network/cpu/cpu_pooling.hpp"
#include "tests/demos/gradient_check.hpp"
#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

using demos::testing::noise;

std::vector<float> to_float(const std::vector<double>& values) { return {values.begin(), values.end()}; }

/// Expects `got` to contain the slope of loss() for each of `values`, computed by central differences in float64.
template <typename Loss>
void expect_slopes(std::vector<double>& values, const std::vector<float>& got, const Loss& loss) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(values.size(), got.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = loss();
    values[i] = value - kStep;
    const double below = loss();
    values[i] = value;
    const double slope = (above - below) / (2 * kStep);
    ASSERT_NEAR(got[i], slope, 1e-4 * (1 + std::abs(slope))) << "element " << i;
  }
}

/// A convolution, normalised over 2 rows, with ReLU. It is computed by the definition and in float64. The loss is a
/// weighted sum.
struct TinyUnit {
  static constexpr std::size_t kRows = 2;
  ConvUnit unit{.conv_name = "conv",
                .norm_name = "norm",
                .channels_in = 3,
                .channels_out = 4,
                .size_in = 5,
                .kernel = 3,
                .stride = 2};
  std::vector<double> x = noise(kRows * unit.elements_in(), 1);
  std::vector<double> weights = noise(unit.weights(), 2);
  std::vector<double> scale = noise(unit.channels_out, 3);
  std::vector<double> shift = noise(unit.channels_out, 4);
  std::vector<double> loss_weights = noise(kRows * unit.elements_out(), 5);

  double pixel(std::size_t row, std::size_t y, std::size_t at_x, std::size_t channel) const {
    if (y >= unit.size_in || at_x >= unit.size_in) return 0;  // above or left of it, it has wrapped
    return x[((row * unit.size_in + y) * unit.size_in + at_x) * unit.channels_in + channel];
  }

  double convolved(std::size_t place, std::size_t channel) const {
    const std::size_t size = unit.size_out();
    const std::size_t row = place / (size * size);
    double sum = 0;
    for (std::size_t i = 0; i < unit.kernel * unit.kernel * unit.channels_in; ++i) {
      const std::size_t dy = i / (unit.kernel * unit.channels_in);
      const std::size_t dx = i / unit.channels_in % unit.kernel;
      const std::size_t y = place / size % size * unit.stride + dy - unit.padding();
      const std::size_t at_x = place % size * unit.stride + dx - unit.padding();
      sum += weights[channel * unit.kernel * unit.kernel * unit.channels_in + i] *
             pixel(row, y, at_x, i % unit.channels_in);
    }
    return sum;
  }

  double loss() const {
    const std::size_t places = kRows * unit.size_out() * unit.size_out();
    double loss = 0;
    for (std::size_t c = 0; c < unit.channels_out; ++c) {
      std::vector<double> values(places);
      for (std::size_t place = 0; place < places; ++place) values[place] = convolved(place, c);
      const double count = static_cast<double>(places);
      const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
      double variance = 0;
      for (const double value : values) variance += (value - mean) * (value - mean) / count;
      for (std::size_t place = 0; place < places; ++place) {
        const double y = (values[place] - mean) / std::sqrt(variance + kNormEpsilon) * scale[c] + shift[c];
        loss += loss_weights[place * unit.channels_out + c] * std::max(y, 0.0);
      }
    }
    return loss;
  }
};

TEST(TinyConvUnit, HasTheSlopesOfItsDefinitionForGradients) {
#ifndef DEMOS_HAVE_DNNL
  GTEST_SKIP() << "this build has no oneDNN";
#endif
  TinyUnit tiny;
  const ConvUnit& unit = tiny.unit;
  ConvolutionEngine engine;
  CpuConvolution convolution(engine, unit, TinyUnit::kRows);
  const std::size_t outputs = tiny.loss_weights.size();
  std::vector<float> convolved(outputs), y(outputs), moments(2 * unit.channels_out), running(2 * unit.channels_out);
  std::vector<float> dscale(unit.channels_out), dshift(unit.channels_out), dweights(tiny.weights.size()),
      dx(tiny.x.size());
  const std::vector<float> x = to_float(tiny.x), weights = to_float(tiny.weights), scale = to_float(tiny.scale),
                           shift = to_float(tiny.shift);
  std::vector<float> dy = to_float(tiny.loss_weights);
  const SumOverRanks none;
  const StepRows rows{none, TinyUnit::kRows, TinyUnit::kRows};
  const NormShape shape{TinyUnit::kRows, unit.size_out() * unit.size_out(), unit.channels_out};
  const NormMoments by_channel{moments.data(), moments.data() + unit.channels_out};
  NormScratch scratch;

  convolution.forward(x.data(), weights.data(), convolved.data());
  measure(shape, rows, convolved.data(), scratch, by_channel, running.data());
  normalize(shape, by_channel, {scale.data(), shift.data()}, AfterNorm::kRelu, convolved.data(), nullptr, scratch,
            y.data());
  normalize_backward(shape, rows,
                     {.x = convolved.data(),
                      .y = y.data(),
                      .scale = scale.data(),
                      .moments = by_channel,
                      .dy = dy.data(),
                      .dx = dy.data(),
                      .dscale = dscale.data(),
                      .dshift = dshift.data()},
                     scratch);
  convolution.backward_weights(x.data(), dy.data(), dweights.data());
  convolution.backward_data(dy.data(), weights.data(), dx.data());

  const auto loss = [&] { return tiny.loss(); };
  expect_slopes(tiny.x, dx, loss);
  expect_slopes(tiny.weights, dweights, loss);
  expect_slopes(tiny.scale, dscale, loss);
  expect_slopes(tiny.shift, dshift, loss);
}

TEST(BatchStatistics, KeepTheirBitsFarFromZero) {
  constexpr std::size_t kPlaces = 5000;
  constexpr float kFar = 4096;
  std::vector<float> x(kPlaces * 2);
  for (std::size_t i = 0; i < kPlaces; ++i) {
    x[2 * i] = kFar + (i % 2 == 0 ? 0.5F : -0.5F);
    x[2 * i + 1] = i % 2 == 0 ? 3.0F : 1.0F;
  }
  std::vector<float> mean(2), inverse(2), running{1, 1, 1, 1};
  NormScratch scratch;
  const SumOverRanks none;
  measure({kPlaces, 1, 2}, {none, kPlaces, kPlaces}, x.data(), scratch, {mean.data(), inverse.data()}, running.data());
  EXPECT_FLOAT_EQ(mean[0], kFar);
  EXPECT_FLOAT_EQ(mean[1], 2);
  EXPECT_NEAR(inverse[0], 1 / std::sqrt(0.25 + kNormEpsilon), 1e-5);
  EXPECT_NEAR(inverse[1], 1 / std::sqrt(1 + kNormEpsilon), 1e-6);
  EXPECT_FLOAT_EQ(running[0], 0.9F + 0.1F * kFar);
  EXPECT_FLOAT_EQ(running[2], 0.9F + 0.1F * 0.25F * 5000 / 4999);
  EXPECT_FLOAT_EQ(running[3], 0.9F + 0.1F * 5000 / 4999);
}

TEST(Normalize, AddsTheShortcutBeforeTheRelu) {
  const std::vector<float> x{1, 2, 3, 4}, addend{0, 10, -5, 0}, scale{1, 3}, shift{0, -1};
  std::vector<float> moments{1, 2, 2, 0.5F}, y(4);
  NormScratch scratch;
  const NormMoments by_channel{moments.data(), moments.data() + 2};
  normalize({2, 1, 2}, by_channel, {scale.data(), shift.data()}, AfterNorm::kNothing, x.data(), nullptr, scratch,
            y.data());
  EXPECT_EQ(y, (std::vector<float>{0, -1, 4, 2}));
  normalize({2, 1, 2}, by_channel, {scale.data(), shift.data()}, AfterNorm::kRelu, x.data(), addend.data(), scratch,
            y.data());
  EXPECT_EQ(y, (std::vector<float>{0, 9, 0, 2}));
}

TEST(MaxPool, TakesTheLargestOfEachWindowAndSendsGradientsBackThere) {
  // 5x5, one channel: windows around the pixels (0, 0), (0, 2), ... (4, 4).
  const std::vector<float> x{-9, -8, -7, -6, -5,  //
                             -4, -3, -2, -1, 0,   //
                             1,  7,  3,  4,  5,   //
                             6,  2,  8,  9,  10,  //
                             11, 12, 13, 14, 15};
  const MaxPoolShape shape{1, 5, 1};
  ASSERT_EQ(shape.size_out(), 3);
  std::vector<float> y(9), inference(9), dx(25, 99);
  std::vector<std::int32_t> taps(9);
  max_pool(shape, x.data(), y.data(), taps.data());
  EXPECT_EQ(y, (std::vector<float>{-3, -1, 0, 7, 9, 10, 12, 14, 15}));
  max_pool(shape, x.data(), inference.data(), nullptr);
  EXPECT_EQ(inference, y);
  const std::vector<float> dy{1, 2, 3, 4, 5, 6, 7, 8, 9};
  max_pool_backward(shape, taps.data(), dy.data(), dx.data());
  const std::vector<float> expected{0, 0, 0, 0, 0,  //
                                    0, 1, 0, 2, 3,  //
                                    0, 4, 0, 0, 0,  //
                                    0, 0, 0, 5, 6,  //
                                    0, 7, 0, 8, 9};
  EXPECT_EQ(dx, expected);
}

TEST(MaxPool, TakesTheFirstOfEqualsAndWhatIsNoNumber) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  const float below = -std::numeric_limits<float>::infinity();
  // Two channels, 2x2: one output each.
  const std::vector<float> x{3, 1, 3, none, 3, 5, 2, 1};
  std::vector<float> y(2), dx(8);
  std::vector<std::int32_t> taps(2);
  const std::vector<float> dy{1, 2};
  max_pool({1, 2, 2}, x.data(), y.data(), taps.data());
  EXPECT_EQ(y[0], 3);
  EXPECT_TRUE(std::isnan(y[1]));
  max_pool_backward({1, 2, 2}, taps.data(), dy.data(), dx.data());
  EXPECT_EQ(dx, (std::vector<float>{1, 0, 0, 2, 0, 0, 0, 0}));

  const std::vector<float> lowest(8, below);
  max_pool({1, 2, 2}, lowest.data(), y.data(), taps.data());
  EXPECT_EQ(y, (std::vector<float>{below, below}));
  max_pool_backward({1, 2, 2}, taps.data(), dy.data(), dx.data());
  EXPECT_EQ(dx, (std::vector<float>{1, 2, 0, 0, 0, 0, 0, 0}));
}

TEST(MeanOverPixels, IsThatOfEachRowAndChannel) {
  const std::vector<float> x{1, 10, 3, 20, 5, 30, 7, 40};  // 2 rows, 2 pixels, 2 channels
  std::vector<float> y(4), dx(8);
  mean_over_pixels({2, 2, 2}, x.data(), y.data());
  EXPECT_EQ(y, (std::vector<float>{2, 15, 6, 35}));
  mean_over_pixels_backward({2, 2, 2}, y.data(), dx.data());
  EXPECT_EQ(dx, (std::vector<float>{1, 7.5F, 1, 7.5F, 3, 17.5F, 3, 17.5F}));
}

class SmoothedCrossEntropy : public ::testing::TestWithParam<double> {};

TEST_P(SmoothedCrossEntropy, IsThatOfItsTargets) {
  constexpr std::size_t kRows = 3, kClasses = 5;
  const std::vector<std::int64_t> labels{4, 0, 2};
  std::vector<double> logits = noise(kRows * kClasses, 6);
  const auto loss = [&] {
    double sum = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      const double* z = logits.data() + row * kClasses;
      double total = 0;
      for (std::size_t j = 0; j < kClasses; ++j) total += std::exp(z[j]);
      for (std::size_t j = 0; j < kClasses; ++j) {
        const double hit = static_cast<std::int64_t>(j) == labels[row] ? 1 - GetParam() : 0;
        sum -= (hit + GetParam() / kClasses) * (z[j] - std::log(total)) / kRows;
      }
    }
    return sum;
  };
  const std::vector<float> given = to_float(logits);
  std::vector<float> dlogits(given.size());
  const Outcome outcome = smoothed_cross_entropy(labels, kClasses, GetParam(), given.data(), dlogits.data());
  EXPECT_NEAR(outcome.mean_loss, loss(), 1e-6);
  expect_slopes(logits, dlogits, loss);
}

INSTANTIATE_TEST_SUITE_P(Smoothing, SmoothedCrossEntropy, ::testing::Values(0.0, 0.1, 1.0));

TEST(SmoothedCrossEntropyOfLargeLogits, DoesNotOverflow) {
  const std::vector<float> logits{1e4F, -1e4F, 0};
  std::vector<float> dlogits(3);
  const std::vector<std::int64_t> label{1};
  const Outcome outcome = smoothed_cross_entropy(label, 3, 0, logits.data(), dlogits.data());
  EXPECT_FLOAT_EQ(static_cast<float>(outcome.mean_loss), 2e4F);
  EXPECT_EQ(dlogits, (std::vector<float>{1, -1, 0}));
  EXPECT_EQ(outcome.correct, 0);
}

TEST(SmoothedCrossEntropyOfEquals, CountsTheFirst) {
  const std::vector<float> logits{2, 2, 2, 2};
  EXPECT_EQ(smoothed_cross_entropy(std::vector<std::int64_t>{0, 1}, 2, 0, logits.data(), nullptr).correct, 1);
}

TEST(DenseLayer, IsRowsTimesTransposedWeightsPlusBias) {
  const HeadShape shape{.rows = 2, .features = 3, .classes = 2};
  const std::vector<float> x{1, 2, 3, 4, 5, 6}, weights{1, 0, -1, 2, 1, 0}, bias{10, 20}, dlogits{1, 2, 3, 4};
  std::vector<float> logits(4), dweights(6), dbias(2), dx(6);
  dense(shape, x.data(), weights.data(), bias.data(), logits.data());
  EXPECT_EQ(logits, (std::vector<float>{8, 24, 8, 33}));
  dense_backward(shape, x.data(), weights.data(), dlogits.data(), dweights.data(), dbias.data(), dx.data());
  EXPECT_EQ(dweights, (std::vector<float>{13, 17, 21, 18, 24, 30}));
  EXPECT_EQ(dbias, (std::vector<float>{4, 6}));
  EXPECT_EQ(dx, (std::vector<float>{5, 2, -1, 11, 4, -3}));
}

}  // namespace
}  // namespace resnet

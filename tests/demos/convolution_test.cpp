#include "demos/common/convolution.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/demos/gradient_check.hpp"

namespace demos {
namespace {

using testing::dot;
using testing::expect_gradient;
using testing::noise;

/// The convolution by its definition, one output at a time and without activation.
std::vector<double> by_definition(std::size_t rows, const Conv2dShape& s, const std::vector<double>& x,
                                  const std::vector<double>& weights, const std::vector<double>& bias) {
  std::vector<double> y;
  const auto pixel = [&](std::size_t row, std::size_t py, std::size_t px, std::size_t channel) {
    if (py < s.pad() || py - s.pad() >= s.height || px < s.pad() || px - s.pad() >= s.width) return 0.0;
    return x[((row * s.height + py - s.pad()) * s.width + px - s.pad()) * s.channels_in + channel];
  };
  for (std::size_t out = 0; out < rows * s.output_elements(); ++out) {
    const std::size_t channel_out = out % s.channels_out;
    const std::size_t position = out / s.channels_out;
    const std::size_t px = position % s.width_out();
    const std::size_t py = position / s.width_out() % s.height_out();
    double sum = bias[channel_out];
    for (std::size_t w = 0; w < s.patch_elements(); ++w) {
      const std::size_t kx = w / s.channels_in % s.kernel;
      const std::size_t ky = w / s.channels_in / s.kernel;
      sum += pixel(position / s.positions(), py + ky, px + kx, w % s.channels_in) *
             weights[w * s.channels_out + channel_out];
    }
    y.push_back(sum);
  }
  return y;
}

class Convolution : public ::testing::TestWithParam<Conv2dShape> {
 protected:
  static constexpr std::size_t kRows = 3;
  const Conv2dShape shape_ = GetParam();
  std::vector<double> x_ = noise(kRows * shape_.input_elements(), 1);
  std::vector<double> weights_ = noise(shape_.patch_elements() * shape_.channels_out, 2);
  std::vector<double> bias_ = noise(shape_.channels_out, 3);
  std::vector<double> y_ = std::vector<double>(kRows * shape_.output_elements());
  std::vector<double> scratch_ = std::vector<double>(conv2d_scratch_elements(shape_));

  void forward(Activation activation) {
    conv2d_forward(kRows, shape_, activation, x_.data(), weights_.data(), bias_.data(), scratch_.data(), y_.data());
  }
};

TEST_P(Convolution, IsTheSumOverEachPatch) {
  forward(Activation::kNone);
  const std::vector<double> expected = by_definition(kRows, shape_, x_, weights_, bias_);
  ASSERT_EQ(y_.size(), expected.size());
  for (std::size_t i = 0; i < y_.size(); ++i) ASSERT_NEAR(y_[i], expected[i], 1e-12) << i;
}

TEST_P(Convolution, GradientMatchesFiniteDifferences) {
  const std::vector<double> direction = noise(y_.size(), 4);
  const auto loss = [&] {
    forward(Activation::kRelu);
    return dot(y_, direction);
  };
  loss();
  std::vector<double> dy = direction, dweights(weights_.size(), 99), dbias(bias_.size(), 99), dx(x_.size(), 99);
  relu_backward(y_.size(), y_.data(), dy.data());
  conv2d_backward(kRows, shape_, x_.data(), weights_.data(), dy.data(), scratch_.data(), dweights.data(), dbias.data(),
                  dx.data());
  expect_gradient(weights_, dweights, loss);
  expect_gradient(bias_, dbias, loss);
  expect_gradient(x_, dx, loss);
}

INSTANTIATE_TEST_SUITE_P(
    PaddingsAndKernels, Convolution,
    ::testing::Values(Conv2dShape{4, 5, 1, 2, 3, Padding::kSame}, Conv2dShape{4, 5, 2, 3, 3, Padding::kValid},
                      Conv2dShape{3, 3, 2, 2, 2, Padding::kSame}, Conv2dShape{2, 3, 1, 2, 5, Padding::kSame},
                      Conv2dShape{3, 3, 2, 2, 3, Padding::kValid}, Conv2dShape{1, 1, 1, 1, 1, Padding::kValid}));

TEST(ConvolutionBlocks, GiveWhatOneImageAtATimeGives) {
  const Conv2dShape shape{8, 8, 2, 3, 3, Padding::kSame};
  constexpr std::size_t kRows = 37;  // a block has 16 images of 64 positions, so these are two blocks and a part of one
  const std::vector<double> x = noise(kRows * shape.input_elements(), 1);
  const std::vector<double> weights = noise(shape.patch_elements() * 3, 2), bias = noise(3, 3);
  std::vector<double> scratch(conv2d_scratch_elements(shape)), y(kRows * shape.output_elements());
  conv2d_forward(kRows, shape, Activation::kNone, x.data(), weights.data(), bias.data(), scratch.data(), y.data());
  const std::vector<double> expected = by_definition(kRows, shape, x, weights, bias);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-12) << i;
}

TEST(MaxPool, TakesTheLargestOfEachWindow) {
  const std::vector<double> x{1, 2, 5, 6,  //
                              3, 4, 8, 7};
  std::vector<double> y(2);
  max_pool_forward(1, {2, 4, 1}, x.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{4, 8}));
}

TEST(MaxPool, CutsWindowsOffAtOddEdges) {
  const std::vector<double> x{1,  2,  -3,  //
                              4,  5,  -6,  //
                              -7, -8, -9};
  std::vector<double> y(4);
  max_pool_forward(1, {3, 3, 1}, x.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{5, -3, -7, -9}));
}

TEST(MaxPool, KeepsChannelsApart) {
  const std::vector<double> x{1, -1, 2, -2, 3, -3, 4, -4};
  std::vector<double> y(2);
  max_pool_forward(1, {2, 2, 2}, x.data(), y.data());
  EXPECT_EQ(y, (std::vector<double>{4, -1}));
}

TEST(MaxPool, GivesTheGradientToTheFirstOfEquals) {
  const std::vector<double> x{7, 7, 7, 7}, dy{2};
  std::vector<double> dx(4, 99);
  max_pool_backward(1, {2, 2, 1}, x.data(), dy.data(), dx.data());
  EXPECT_EQ(dx, (std::vector<double>{2, 0, 0, 0}));
}

class MaxPoolGradient : public ::testing::TestWithParam<Pool2dShape> {};

TEST_P(MaxPoolGradient, MatchesFiniteDifferences) {
  constexpr std::size_t kRows = 2;
  const Pool2dShape shape = GetParam();
  std::vector<double> x = noise(kRows * shape.input_elements(), 1), y(kRows * shape.output_elements());
  const std::vector<double> direction = noise(y.size(), 2);
  const auto loss = [&] {
    max_pool_forward(kRows, shape, x.data(), y.data());
    return dot(y, direction);
  };
  std::vector<double> dx(x.size(), 99);
  max_pool_backward(kRows, shape, x.data(), direction.data(), dx.data());
  expect_gradient(x, dx, loss);
}

INSTANTIATE_TEST_SUITE_P(EvenAndOddSizes, MaxPoolGradient,
                         ::testing::Values(Pool2dShape{4, 4, 2}, Pool2dShape{3, 5, 2}, Pool2dShape{1, 1, 3},
                                           Pool2dShape{1, 2, 1}));

}  // namespace
}  // namespace demos

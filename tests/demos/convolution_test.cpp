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

/// The arrays of a convolution of some images.
struct Convolution {
  Convolution(const Conv2dShape& shape, std::size_t rows) : shape(shape), rows(rows) {}

  void forward(Activation activation) {
    conv2d_forward(rows, shape, activation, x.data(), weights.data(), bias.data(), scratch.data(), y.data());
  }

  Conv2dShape shape;
  std::size_t rows;
  std::vector<double> x = noise(rows * shape.input_elements(), 1);
  std::vector<double> weights = noise(shape.patch_elements() * shape.channels_out, 2);
  std::vector<double> bias = noise(shape.channels_out, 3);
  std::vector<double> y = std::vector<double>(rows * shape.output_elements());
  std::vector<double> scratch = std::vector<double>(conv2d_scratch_elements(shape));
};

constexpr Conv2dShape kShapes[] = {{4, 5, 1, 2, 3, Padding::kSame},  {4, 5, 2, 3, 3, Padding::kValid},
                                   {3, 3, 2, 2, 2, Padding::kSame},  {2, 3, 1, 2, 5, Padding::kSame},
                                   {3, 3, 2, 2, 3, Padding::kValid}, {1, 1, 1, 1, 1, Padding::kValid}};

TEST(Convolution, IsTheSumOverEachPatch) {
  const auto check = [](Convolution of) {
    of.forward(Activation::kNone);
    const std::vector<double> expected = by_definition(of.rows, of.shape, of.x, of.weights, of.bias);
    ASSERT_EQ(of.y.size(), expected.size());
    for (std::size_t i = 0; i < of.y.size(); ++i) ASSERT_NEAR(of.y[i], expected[i], 1e-12) << i;
  };
  for (const Conv2dShape& shape : kShapes) check({shape, 3});
  // A block has 16 images of 64 positions, so these are two blocks and a part of one.
  check({{8, 8, 2, 3, 3, Padding::kSame}, 37});
}

TEST(Convolution, GradientMatchesFiniteDifferences) {
  for (const Conv2dShape& shape : kShapes) {
    Convolution of(shape, 3);
    const std::vector<double> direction = noise(of.y.size(), 4);
    const auto loss = [&] {
      of.forward(Activation::kRelu);
      return dot(of.y, direction);
    };
    loss();
    std::vector<double> dy = direction, dweights(of.weights.size(), 99), dbias(of.bias.size(), 99), dx(of.x.size(), 99);
    relu_backward(of.y.size(), of.y.data(), dy.data());
    conv2d_backward(of.rows, shape, of.x.data(), of.weights.data(), dy.data(), of.scratch.data(), dweights.data(),
                    dbias.data(), dx.data());
    expect_gradient(of.weights, dweights, loss);
    expect_gradient(of.bias, dbias, loss);
    expect_gradient(of.x, dx, loss);
  }
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

}  // namespace
}  // namespace demos

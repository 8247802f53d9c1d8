// The kernels at the two ends of a residual network against the same on the CPU.

#include <gtest/gtest.h>

#include "demos/resnet/cuda_edge_kernels.hpp"
#include "demos/resnet/images.hpp"
#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

using demos::testing::OnDevice;
constexpr CUstream_st* kStream = nullptr;
constexpr std::size_t kColors = 3;

class ResnetKernels : public demos::testing::OnGpu {};

std::vector<float> uniform(std::size_t count, std::uint64_t from) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(testing::uniform_at(from + i));
  return values;
}

TEST_F(ResnetKernels, PrepareImagesAsTheCpuDoes) {
  constexpr std::size_t kRows = 5;
  const ImageShape shape{11, 13};
  const Preparation preparation = imagenet_preparation(8);
  std::vector<std::uint8_t> images(kRows * shape.elements());
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * 37 % 251);
  const std::vector<std::int64_t> row_ids{7, 0, 123456789012, 3, 4};
  for (const bool is_random : {false, true}) {
    const AugmentKey key{.seed = 5, .step = 9, .is_random = is_random, .mirrors = true};
    std::vector<float> expected(kRows * 8 * 8 * kColors);
    prepare_images(shape, preparation, key, images, row_ids, expected);
    const OnDevice<std::uint8_t> stored(images);
    const OnDevice<std::int64_t> ids(row_ids);
    const OnDevice<AugmentKey> device_key({key});
    const OnDevice<float> wide(std::vector<float>(kRows * 8 * 8 * cuda::kImageChannels, 99));
    cuda::prepare(CudaMath::kFloat32, kRows, stored.data(), shape, preparation, ids.data(), device_key.data(),
                  wide.data(), kStream);
    const std::vector<float> got = wide.read();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t channel = i % cuda::kImageChannels;
      const float value = channel < kColors ? expected[i / cuda::kImageChannels * kColors + channel] : 0.0F;
      ASSERT_NEAR(got[i], value, 1e-5) << i << (is_random ? ", random" : ", from the middle");
    }
  }
}

TEST_F(ResnetKernels, PoolTheLargestAndLeadItsGradientBack) {
  const cuda::PoolShape shape{2, 7, 16};
  const std::size_t in = shape.rows * shape.size * shape.size * shape.channels;
  const std::size_t out = shape.rows * shape.size_out() * shape.size_out() * shape.channels;
  const std::vector<float> values = uniform(in, 1);
  const std::vector<float> gradient = uniform(out, 5000);
  const OnDevice<float> x(values), dy(gradient);
  const OnDevice<float> y{std::vector<float>(out)};
  const OnDevice<float> dx{std::vector<float>(in, 99)};
  const OnDevice<float> factor{std::vector<float>(shape.channels, 1)};
  const OnDevice<float> offset{std::vector<float>(shape.channels, 0)};
  const OnDevice<std::uint8_t> which{std::vector<std::uint8_t>(out, 255)};
  cuda::pool_forward(CudaMath::kFloat32, shape, x.data(), factor.data(), offset.data(), y.data(), which.data(),
                     kStream);
  cuda::pool_backward(CudaMath::kFloat32, shape, dy.data(), dy.data(), which.data(), dx.data(), kStream);
  const std::vector<float> pooled = y.read();
  const std::vector<float> got = dx.read();
  std::vector<float> expected_gradient(in);
  for (std::size_t i = 0; i < out; ++i) {
    const std::size_t channel = i % shape.channels;
    const std::size_t column = i / shape.channels % shape.size_out();
    const std::size_t line = i / shape.channels / shape.size_out() % shape.size_out();
    const std::size_t row = i / shape.channels / shape.size_out() / shape.size_out();
    float largest = -1;
    std::size_t place = 0;
    for (std::size_t h = line == 0 ? 0 : 2 * line - 1; h < std::min(shape.size, 2 * line + 2); ++h) {
      for (std::size_t w = column == 0 ? 0 : 2 * column - 1; w < std::min(shape.size, 2 * column + 2); ++w) {
        const std::size_t at = ((row * shape.size + h) * shape.size + w) * shape.channels + channel;
        if (std::max(values[at], 0.0F) <= largest) continue;
        largest = std::max(values[at], 0.0F);
        place = at;
      }
    }
    ASSERT_FLOAT_EQ(pooled[i], largest) << i;
    expected_gradient[place] += 2 * gradient[i];
  }
  for (std::size_t i = 0; i < in; ++i) ASSERT_NEAR(got[i], expected_gradient[i], 1e-6) << i;
}

TEST_F(ResnetKernels, ALabelOutOfRangeMakesTheLossNoNumber) {
  for (const std::int64_t label : {std::int64_t{-1}, std::int64_t{3}}) {
    const OnDevice<float> logits({1, 2, 3, 3, 2, 1}), bias({0, 0, 0});
    const OnDevice<std::int64_t> labels({1, label});
    const OnDevice<double> losses({0, 0}), mean({0});
    const OnDevice<std::int32_t> right({0, 0});
    const OnDevice<std::int64_t> correct({0});
    cuda::loss(CudaMath::kFloat32, 2, 3, logits.data(), bias.data(), labels.data(), {}, nullptr,
               {losses.data(), right.data(), mean.data(), correct.data()}, kStream);
    EXPECT_TRUE(std::isnan(mean.read()[0])) << label;
  }
}

}  // namespace
}  // namespace resnet

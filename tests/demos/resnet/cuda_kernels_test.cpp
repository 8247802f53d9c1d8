// The kernels of a residual network, compared with the same computations on the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "demos/resnet/network/cuda/cuda_edge_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_image_kernels.hpp"
#include "demos/resnet/network/images.hpp"
#include "tests/demos/resnet/cuda_norm_support.hpp"

namespace resnet {
namespace {

using demos::testing::OnDevice;
using testing::Elements;
using testing::elements_of;
using testing::kStream;
using testing::Moments;
using testing::Norm;
using testing::rounding_of;
using testing::Sums;
constexpr std::size_t kColors = 3;

class ResnetKernels : public demos::testing::OnGpu {};

/// An image [size, size, 3], folded according to the definition.
std::vector<float> folded(std::span<const float> image, std::size_t size) {
  const std::size_t out = cuda::folded_size(size);
  std::vector<float> result(out * out * cuda::kFoldedChannels);
  for (std::size_t line = 0; line < size; ++line) {
    for (std::size_t column = 0; column < size; ++column) {
      const std::size_t pixel = (line / 2 + 2) * out + column / 2 + 2;
      const std::size_t channel = (line % 2 * 2 + column % 2) * kColors;
      for (std::size_t c = 0; c < kColors; ++c) {
        result[pixel * cuda::kFoldedChannels + channel + c] = image[(line * size + column) * kColors + c];
      }
    }
  }
  return result;
}

TEST_F(ResnetKernels, PrepareImagesAsTheCpuDoes) {
  constexpr std::size_t kRows = 5;
  const ImageShape shape{11, 13};
  for (const std::size_t crop : {std::size_t{8}, std::size_t{9}}) {
    const Preparation preparation = imagenet_preparation(crop);
    std::vector<std::uint8_t> images(kRows * shape.elements());
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * 37 % 251);
    const std::vector<std::int64_t> row_ids{7, 0, 123456789012, 3, 4};
    for (const bool is_random : {false, true}) {
      const AugmentKey key{.seed = 5, .step = 9, .is_random = is_random, .mirrors = true};
      const std::size_t row = crop * crop * kColors;
      std::vector<float> prepared(kRows * row);
      prepare_images(shape, preparation, key, images, row_ids, prepared);
      const OnDevice<std::uint8_t> stored(images);
      const OnDevice<std::int64_t> ids(row_ids);
      const OnDevice<AugmentKey> device_key({key});
      const std::size_t folded_row = cuda::folded_size(crop) * cuda::folded_size(crop) * cuda::kFoldedChannels;
      const OnDevice<float> from_stored(std::vector<float>(kRows * folded_row, 99));
      const OnDevice<float> from_prepared(std::vector<float>(kRows * folded_row, 99));
      cuda::prepare(CudaMath::kFloat32, kRows, stored.data(), shape, preparation, ids.data(), device_key.data(),
                    from_stored.data(), kStream);
      const OnDevice<float> device_prepared(prepared);
      cuda::fold(CudaMath::kFloat32, kRows, crop, device_prepared.data(), from_prepared.data(), kStream);
      const std::vector<float> got = from_stored.read();
      const std::vector<float> also = from_prepared.read();
      for (std::size_t r = 0; r < kRows; ++r) {
        const std::vector<float> expected = folded(std::span(prepared).subspan(r * row, row), crop);
        for (std::size_t i = 0; i < folded_row; ++i) {
          ASSERT_NEAR(got[r * folded_row + i], expected[i], 1e-5) << r << " " << i << (is_random ? ", random" : "");
          ASSERT_EQ(also[r * folded_row + i], expected[i]) << r << " " << i;
        }
      }
    }
  }
}

/// The gradients of the input, of the scale and of the shift of a normalisation, computed by the formula from the
/// gradient of its output.
struct NormGradient {
  std::vector<double> dx;
  double scale = 0;
  double shift = 0;
  NormGradient(const std::vector<float>& x, const std::vector<double>& dz, float gamma, std::size_t channels,
               std::size_t c) {
    const Moments moments(x, channels, c);
    const auto count = static_cast<double>(x.size() / channels);
    const auto normal = [&](std::size_t i) { return (x[i] - moments.mean) * moments.inverse; };
    for (std::size_t i = c; i < x.size(); i += channels) {
      shift += dz[i];
      scale += dz[i] * normal(i);
    }
    for (std::size_t i = c; i < x.size(); i += channels)
      dx.push_back(gamma * moments.inverse * (dz[i] - shift / count - normal(i) * scale / count));
  }
};

void expect_gradient_of(const Norm& norm, const std::vector<float>& got, const std::vector<float>& x,
                        const std::vector<double>& dz, double rounding = 0) {
  const std::size_t channels = norm.channels;
  const std::vector<float> gradients = norm.gradients.read();
  const std::vector<float> gamma = norm.scale.read();
  const double tolerance = 1e-5 * std::sqrt(static_cast<double>(x.size() / channels)) + 1e-5;
  for (std::size_t c = 0; c < channels; ++c) {
    const NormGradient expected(x, dz, gamma[c], channels, c);
    ASSERT_NEAR(gradients[c], expected.scale, tolerance) << c;
    ASSERT_NEAR(gradients[channels + c], expected.shift, tolerance) << c;
    const double slope =
        // The derivative of dx with respect to dz, which may have been stored with rounding.
        std::abs(gamma[c] * Moments(x, channels, c).inverse);
    for (std::size_t i = 0; i < expected.dx.size(); ++i) {
      const double size = std::abs(expected.dx[i]);
      const double stored = rounding * (size + slope * std::abs(dz[i * channels + c]));
      ASSERT_NEAR(got[i * channels + c], expected.dx[i], 1e-4 * (1 + size) + stored) << c << " " << i;
    }
  }
}

/// Positions, channels and the type of stored values. The cases include one block and many, and whole groups of columns
/// and parts of them.
using NormCase = std::tuple<std::size_t, std::size_t, CudaMath>;
class ResnetNormKernels : public ResnetKernels, public ::testing::WithParamInterface<NormCase> {};

TEST_P(ResnetNormKernels, NormaliseAndLeadTheGradientOfTheReluBack) {
  const auto [positions, channels, math] = GetParam();
  const std::vector<float> values = elements_of(math, positions * channels, 7);
  const std::vector<float> gradient = elements_of(math, positions * channels, 900001);
  const Elements x(math, values), dy(math, gradient), y(math, std::vector<float>(values.size(), 99));
  const Norm norm(channels, 31);
  const Sums sums(channels);
  const cuda::NormShape shape{positions, channels};
  for (int again = 0; again < 2; ++again)  // in the second call, the kernel must count its blocks from zero again
    cuda::statistics(math, shape, x.data(), norm.place(), sums.place(), cuda::Ranks::kOwn, kStream);
  cuda::apply_relu(math, shape, x.data(), norm.place(), y.data(), kStream);
  const std::vector<float> got = y.read();
  const std::vector<float> gamma = norm.scale.read();
  const std::vector<float> beta = norm.shift.read();
  std::vector<double> dz(values.size());
  for (std::size_t c = 0; c < channels; ++c) {
    const Moments moments(values, channels, c);
    for (std::size_t i = c; i < values.size(); i += channels) {
      const double expected = std::max(0.0, (values[i] - moments.mean) * moments.inverse * gamma[c] + beta[c]);
      ASSERT_NEAR(got[i], expected, 1e-4 * (1 + expected) + rounding_of(math) * expected) << i;
      dz[i] = got[i] > 0 ? gradient[i] : 0.0F;
    }
  }
  const cuda::NormSide side{x.data(), norm.place(), dy.data(), sums.sums.data()};
  cuda::backward_sums_relu(math, shape, dy.data(), side, sums.place(), cuda::Ranks::kOwn, kStream);
  cuda::backward_apply_relu(math, shape, dy.data(), side, kStream);
  expect_gradient_of(norm, dy.read(), values, dz, rounding_of(math));
}

TEST_P(ResnetNormKernels, LeadTheGradientBackThroughABlocksEnd) {
  const auto [positions, channels, math] = GetParam();
  const std::size_t elements = positions * channels;
  const std::vector<float> values = elements_of(math, elements, 7), others = elements_of(math, elements, 400007);
  const std::vector<float> g1 = elements_of(math, elements, 900001), g2 = elements_of(math, elements, 1300001);
  const cuda::NormShape shape{positions, channels};
  for (const bool has_shortcut : {false, true}) {
    const std::vector<float> unset(elements, 99);
    const Elements x(math, values), other(math, others), first(math, g1), second(math, g2), y(math, unset),
        dx(math, unset);
    const OnDevice<std::uint8_t> passes(std::vector<std::uint8_t>(elements / 8, 255));
    const Norm norm(channels, 31), shortcut_norm(channels, 77);
    const Sums sums(channels);
    const auto statistics = [&](const Elements& of, const Norm& into) {
      cuda::statistics(math, shape, of.data(), into.place(), sums.place(), cuda::Ranks::kOwn, kStream);
    };
    statistics(x, norm);
    statistics(other, shortcut_norm);
    if (has_shortcut) {
      cuda::apply_two_relu(math, shape, x.data(), norm.place(), other.data(), shortcut_norm.place(), y.data(),
                           passes.data(), kStream);
    } else {
      cuda::apply_add_relu(math, shape, x.data(), norm.place(), other.data(), y.data(), passes.data(), kStream);
    }
    const std::vector<float> output = y.read();
    const cuda::NormSide side{x.data(), norm.place(), dx.data(), sums.sums.data()};
    const cuda::NormSide shortcut{other.data(), shortcut_norm.place(), second.data(),
                                  sums.sums.data() + 2 * channels + 1};
    cuda::backward_sums_block(math, shape, first.data(), second.data(), passes.data(), second.data(), side,
                              has_shortcut ? &shortcut : nullptr, sums.place(), cuda::Ranks::kOwn, kStream);
    std::vector<double> dz(elements);
    const std::vector<float> passed = second.read();
    for (std::size_t i = 0; i < elements; ++i) {
      dz[i] = output[i] > 0 ? static_cast<double>(g1[i]) + static_cast<double>(g2[i]) : 0.0;
      ASSERT_NEAR(passed[i], dz[i], 1e-6 + rounding_of(math) * std::abs(dz[i])) << i;
    }
    cuda::backward_apply_block(math, shape, second.data(), side, has_shortcut ? &shortcut : nullptr, kStream);
    expect_gradient_of(norm, dx.read(), values, dz, rounding_of(math));
    if (has_shortcut) expect_gradient_of(shortcut_norm, second.read(), others, dz, rounding_of(math));
  }
}

std::vector<NormCase> norm_cases() {
  constexpr std::pair<std::size_t, std::size_t> kSizes[] = {
      {1, 8}, {5, 24}, {70, 64}, {3000, 64}, {900, 136}, {300, 512}, {49, 2048}, {70001, 64}, {40001, 136}};
  std::vector<NormCase> cases;
  for (const auto& [positions, channels] : kSizes) {
    for (const CudaMath math : {CudaMath::kFloat32, CudaMath::kBfloat16}) cases.emplace_back(positions, channels, math);
  }
  return cases;
}
std::string name_of(const ::testing::TestParamInfo<NormCase>& info) {
  const auto& [positions, channels, math] = info.param;
  return std::to_string(positions) + "x" + std::to_string(channels) +
         (math == CudaMath::kBfloat16 ? "InBfloat16" : "InFloat32");
}
INSTANTIATE_TEST_SUITE_P(, ResnetNormKernels, ::testing::ValuesIn(norm_cases()), name_of);

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

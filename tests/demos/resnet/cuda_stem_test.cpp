// The first convolution as a product that takes statistics, and the gradient of its filter, compared with the CPU.

#include "demos/resnet/network/hopper/cuda_stem_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/demos/resnet/cuda_norm_support.hpp"

namespace resnet {
namespace {

using demos::testing::OnDevice;
using testing::Elements;
using testing::elements_of;
using testing::kStream;
using testing::Moments;
using testing::Norm;
using testing::Sums;

constexpr CudaMath kMath = CudaMath::kBfloat16;
constexpr std::size_t kDepth = cuda::kFoldedKernel * cuda::kFoldedKernel * cuda::kFoldedChannels;
constexpr std::size_t kChannels = cuda::kStemChannels;
constexpr float kUnset = 99;

struct StemCase {
  cuda::StemShape shape;
  unsigned blocks = 0;  // at most this number of blocks; 0 means as many as the device has
};

class ResnetStem : public demos::testing::OnGpu, public ::testing::WithParamInterface<StemCase> {
 protected:
  void SetUp() override {
    demos::testing::OnGpu::SetUp();
    if (IsSkipped()) return;
    device_ = cuda::product_device();
    if (!device_) GTEST_SKIP() << "these kernels are for compute capability 9.0";
    if (GetParam().blocks > 0) device_->blocks = GetParam().blocks;
    x_ = elements_of(kMath, shape_.rows * folded_ * folded_ * cuda::kFoldedChannels, 11);
    filter_ = elements_of(kMath, kChannels * kDepth, 50000011);
  }

  cuda::StemShape shape_ = GetParam().shape;
  std::size_t folded_ = shape_.size_out + cuda::kFoldedKernel - 1;
  std::size_t positions_ = shape_.rows * shape_.size_out * shape_.size_out;
  std::optional<cuda::ProductDevice> device_;
  std::vector<float> x_;       // [rows, folded, folded, kFoldedChannels]
  std::vector<float> filter_;  // [channels, depth]

  /// The output of the convolution: [positions, channels].
  std::vector<float> convolve() const {
    std::vector<float> by_depth(filter_.size());  // [depth, channels]
    for (std::size_t i = 0; i < filter_.size(); ++i) by_depth[i % kDepth * kChannels + i / kDepth] = filter_[i];
    std::vector<float> result(positions_ * kChannels);
    for (std::size_t p = 0; p < positions_; ++p) {
      const std::size_t column = p % shape_.size_out;
      const std::size_t line = p / shape_.size_out % shape_.size_out;
      const std::size_t row = p / shape_.size_out / shape_.size_out;
      for (std::size_t a = 0; a < cuda::kFoldedKernel; ++a) {
        const std::size_t pixel = (row * folded_ + line + a) * folded_ + column;
        const float* const values = x_.data() + pixel * cuda::kFoldedChannels;  // values of four neighbouring pixels
        constexpr std::size_t kOfLine = cuda::kFoldedKernel * cuda::kFoldedChannels;
        for (std::size_t k = 0; k < kOfLine; ++k) {
          const float* const of_k = by_depth.data() + (a * kOfLine + k) * kChannels;
          for (std::size_t c = 0; c < kChannels; ++c) result[p * kChannels + c] += values[k] * of_k[c];
        }
      }
    }
    return result;
  }
};

TEST_P(ResnetStem, TakesTheStatisticsOfWhatItWrites) {
  const std::vector<float> expected = convolve();
  const Elements x(kMath, x_), filter(kMath, filter_);
  const Sums sums(kChannels);
  const Norm norm(kChannels, 31), of_ranks(kChannels, 31), again(kChannels, 31);
  const std::vector<float> before = norm.running_mean.read();
  const auto run = [&](const Norm& into, cuda::Ranks ranks) {
    // After the last position, there is one that no kernel may write.
    const Elements y(kMath, std::vector<float>(expected.size() + kChannels, kUnset));
    cuda::stem_statistics(*device_, shape_, x.data(), filter.data(), y.data(), into.place(), sums.place(), ranks,
                          kStream);
    return y.read();
  };
  std::vector<float> y = run(norm, cuda::Ranks::kOwn);
  EXPECT_EQ(run(of_ranks, cuda::Ranks::kAll), y);
  EXPECT_EQ(run(again, cuda::Ranks::kOwn), y) << "the same bits again";
  EXPECT_EQ(again.own.read(), norm.own.read()) << "the same bits again";
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(y[i], expected[i], std::abs(expected[i]) / 256 + 1e-4F) << i;
  for (std::size_t i = expected.size(); i < y.size(); ++i) ASSERT_EQ(y[i], kUnset);
  y.resize(expected.size());
  const std::vector<float> own = norm.own.read(), own_of_ranks = of_ranks.own.read();
  const std::vector<float> running = norm.running_mean.read();
  for (std::size_t c = 0; c < kChannels; ++c) {
    const Moments moments(y, kChannels, c);
    const double variance = std::pow(moments.inverse, -2) - 1e-5;
    const double tolerance = 3e-5 * (1 + variance);  // a square of some dozens was rounded
    ASSERT_NEAR(own[2 * kChannels + c], moments.mean, 2e-5) << c;
    ASSERT_NEAR(std::pow(static_cast<double>(own[3 * kChannels + c]), -2) - 1e-5, variance, tolerance) << c;
    ASSERT_NEAR(running[c], 0.9 * static_cast<double>(before[c]) + 0.1 * moments.mean, 1e-5) << c;
    ASSERT_NEAR(own_of_ranks[2 * kChannels + c], moments.mean, 2e-5) << c;
    ASSERT_NEAR(own_of_ranks[3 * kChannels + c] / static_cast<double>(positions_), variance, tolerance) << c;
  }
}

/// The gradient of the first convolution's filter, and the sum of the absolute values of its terms.
struct FilterGradient {
  std::vector<double> value = std::vector<double>(kChannels * kDepth);
  std::vector<double> size = std::vector<double>(kChannels * kDepth);
};

/// Computes the gradient [channels, depth] of the filter from dx, the gradient of the convolution's output.
FilterGradient correlate(const cuda::StemShape& shape, const std::vector<float>& x, const std::vector<float>& dx) {
  const std::size_t folded = shape.size_out + cuda::kFoldedKernel - 1;
  constexpr std::size_t kOfLine = cuda::kFoldedKernel * cuda::kFoldedChannels;
  FilterGradient sums;
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t p = 0; p < dx.size() / kChannels; ++p) {
      const double gradient = dx[p * kChannels + c];
      const std::size_t line = p / shape.size_out % shape.size_out;
      const std::size_t row = p / shape.size_out / shape.size_out;
      for (std::size_t a = 0; a < cuda::kFoldedKernel; ++a) {
        const std::size_t pixel = (row * folded + line + a) * folded + p % shape.size_out;
        const float* const values = x.data() + pixel * cuda::kFoldedChannels;
        double* const value = sums.value.data() + c * kDepth + a * kOfLine;
        double* const size = sums.size.data() + c * kDepth + a * kOfLine;
        for (std::size_t k = 0; k < kOfLine; ++k) {
          value[k] += gradient * static_cast<double>(values[k]);
          size[k] += std::abs(gradient * static_cast<double>(values[k]));
        }
      }
    }
  }
  return sums;
}

/// The place in the folded filter of an element of the filter [7, 7, 3].
std::size_t folded_place(std::size_t line, std::size_t column, std::size_t color) {
  const std::size_t in_quad = (line + 1) % 2 * 2 + (column + 1) % 2;
  return ((line + 1) / 2 * cuda::kFoldedKernel + (column + 1) / 2) * cuda::kFoldedChannels + in_quad * 3 + color;
}

TEST_P(ResnetStem, LeadsTheGradientBackToItsFilter) {
  const std::size_t pooled = shape_.rows * (shape_.size_out / 2) * (shape_.size_out / 2) * kChannels;
  const cuda::PoolShape pool{shape_.rows, shape_.size_out, kChannels};
  const Elements x(kMath, x_), y(kMath, elements_of(kMath, positions_ * kChannels, 7));
  const Elements g1(kMath, elements_of(kMath, pooled, 100000007)), g2(kMath, elements_of(kMath, pooled, 200000007));
  const Elements dx(kMath, std::vector<float>(positions_ * kChannels, kUnset));
  const Elements largest(kMath, std::vector<float>(pooled));
  const OnDevice<std::uint8_t> which(std::vector<std::uint8_t>(pooled, 99));
  const Sums sums(kChannels);
  const Norm norm(kChannels, 31);
  const cuda::NormSide side{y.data(), norm.place(), dx.data(), sums.sums.data()};
  const OnDevice<float> scratch(std::vector<float>(cuda::stem_scratch_elements(*device_), kUnset));
  constexpr std::size_t kOfFilter = cuda::kStemKernel * cuda::kStemKernel * 3;
  const OnDevice<float> gradient(std::vector<float>(kChannels * kOfFilter, kUnset));
  cuda::statistics(kMath, {positions_, kChannels}, y.data(), norm.place(), sums.place(), cuda::Ranks::kOwn, kStream);
  cuda::pool_forward(kMath, pool, y.data(), norm.place(), largest.data(), which.data(), kStream);
  for (const bool has_second : {false, true}) {
    SCOPED_TRACE(has_second ? "two gradients" : "one gradient");
    const cuda::PoolGradient arriving{g1.data(), has_second ? g2.data() : nullptr, which.data()};
    cuda::pool_backward_sums(kMath, pool, arriving, side, sums.place(), cuda::Ranks::kOwn, kStream);
    const auto run = [&] {
      cuda::stem_filter_gradient(*device_, shape_, x.data(), arriving, side, scratch.data(), gradient.data(), kStream);
      return gradient.read();
    };
    const std::vector<float> got = run();
    EXPECT_EQ(run(), got) << "the same bits again";
    cuda::pool_backward_apply(kMath, pool, arriving, side, kStream);
    const FilterGradient expected = correlate(shape_, x_, dx.read());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t in_filter = i % kOfFilter;
      const std::size_t place = i / kOfFilter * kDepth + folded_place(in_filter / 3 / cuda::kStemKernel,
                                                                      in_filter / 3 % cuda::kStemKernel, in_filter % 3);
      // Gradients of windows lose four bits compared with float32, so some elements of dx are rounded the other way.
      ASSERT_NEAR(got[i], expected.value[place], 5e-5 * expected.size[place]) << i;
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<StemCase>& info) {
  const auto& [shape, blocks] = info.param;
  return std::to_string(shape.rows) + "Of" + std::to_string(shape.size_out) +
         (blocks > 0 ? "By" + std::to_string(blocks) : "");
}
// With few blocks, each has many tiles and uses its memory repeatedly.
INSTANTIATE_TEST_SUITE_P(, ResnetStem, ::testing::Values(StemCase{{1, 112}}, StemCase{{1, 224}}, StemCase{{2, 112}, 3}),
                         name_of);

TEST(ResnetStemSizes, AreOfWideImages) {
  EXPECT_TRUE(cuda::has_stem_product(112, 64));
  EXPECT_TRUE(cuda::has_stem_product(224, 64));
  EXPECT_FALSE(cuda::has_stem_product(0, 64));
  EXPECT_FALSE(cuda::has_stem_product(16, 64));
  EXPECT_FALSE(cuda::has_stem_product(112, 32));
}

}  // namespace
}  // namespace resnet

// The first convolution as a product that takes statistics, against the same on the CPU.

#include "demos/resnet/cuda_stem_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tests/demos/resnet/cuda_norm_support.hpp"

namespace resnet {
namespace {

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

class ResnetStem : public demos::testing::OnGpu, public ::testing::WithParamInterface<cuda::StemShape> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    device_ = cuda::product_device();
    if (!device_) GTEST_SKIP() << "these kernels are for compute capability 9.0";
  }

  cuda::StemShape shape_ = GetParam();
  std::size_t folded_ = shape_.size_out + cuda::kFoldedKernel - 1;
  std::size_t positions_ = shape_.rows * shape_.size_out * shape_.size_out;
  std::optional<cuda::ProductDevice> device_;
  std::vector<float> x_ = elements_of(kMath, shape_.rows * folded_ * folded_ * cuda::kFoldedChannels, 11);
  std::vector<float> filter_ = elements_of(kMath, kChannels * kDepth, 50000011);

  /// [positions, channels].
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
        const float* const values = x_.data() + pixel * cuda::kFoldedChannels;  // of four neighbouring pixels
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
    // With a position behind the last, which nobody is to write.
    const Elements y(kMath, std::vector<float>(expected.size() + kChannels, kUnset));
    cuda::stem_statistics(*device_, shape_, x.data(), filter.data(), y.data(), into.place(), sums.place(), ranks, kStream);
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
    const double tolerance = 3e-5 * (1 + variance);  // a square was rounded, of some dozens
    ASSERT_NEAR(own[2 * kChannels + c], moments.mean, 2e-5) << c;
    ASSERT_NEAR(std::pow(static_cast<double>(own[3 * kChannels + c]), -2) - 1e-5, variance, tolerance) << c;
    ASSERT_NEAR(running[c], 0.9 * static_cast<double>(before[c]) + 0.1 * moments.mean, 1e-5) << c;
    ASSERT_NEAR(own_of_ranks[2 * kChannels + c], moments.mean, 2e-5) << c;
    ASSERT_NEAR(own_of_ranks[3 * kChannels + c] / static_cast<double>(positions_), variance, tolerance) << c;
  }
}

std::string name_of(const ::testing::TestParamInfo<cuda::StemShape>& info) {
  return std::to_string(info.param.rows) + "Of" + std::to_string(info.param.size_out);
}
INSTANTIATE_TEST_SUITE_P(, ResnetStem,
                         ::testing::Values(cuda::StemShape{1, 112}, cuda::StemShape{1, 224}, cuda::StemShape{7, 112}),
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

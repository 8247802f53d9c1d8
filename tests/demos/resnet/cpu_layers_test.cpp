// Layers of a residual network on CPU devices, with values that the references of the whole network do not have.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "demos/resnet/network/cpu/cpu_head.hpp"
#include "demos/resnet/network/cpu/cpu_normalization.hpp"
#include "demos/resnet/network/cpu/cpu_pooling.hpp"

namespace resnet {
namespace {

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

TEST(SmoothedCrossEntropy, DoesNotOverflowAndCountsTheFirstOfEquals) {
  const std::vector<float> logits{1e4F, -1e4F, 0};
  std::vector<float> dlogits(3);
  const std::vector<std::int64_t> label{1};
  const Outcome outcome = smoothed_cross_entropy(label, 3, 0, logits.data(), dlogits.data());
  EXPECT_FLOAT_EQ(static_cast<float>(outcome.mean_loss), 2e4F);
  EXPECT_EQ(dlogits, (std::vector<float>{1, -1, 0}));
  EXPECT_EQ(outcome.correct, 0);
  const std::vector<float> equal{2, 2, 2, 2};
  EXPECT_EQ(smoothed_cross_entropy(std::vector<std::int64_t>{0, 1}, 2, 0, equal.data(), nullptr).correct, 1);
}

}  // namespace
}  // namespace resnet

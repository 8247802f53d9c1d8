// Products that take sums of their results, compared with the same computations on the CPU.

#include "demos/resnet/network/hopper/cuda_product_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
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
constexpr float kUnset = 99;

struct ProductCase {
  std::size_t depth;
  std::size_t channels;
  std::size_t positions;
  unsigned blocks = 0;  // at most this number of blocks; 0 means as many as the device has
};

class ResnetProducts : public demos::testing::OnGpu, public ::testing::WithParamInterface<ProductCase> {
 protected:
  void SetUp() override {
    demos::testing::OnGpu::SetUp();
    if (IsSkipped()) return;
    device_ = cuda::product_device();
    if (!device_) GTEST_SKIP() << "these kernels are for compute capability 9.0";
    if (tested_.blocks > 0) device_->blocks = tested_.blocks;
  }

  ProductCase tested_ = GetParam();
  cuda::NormShape shape_{tested_.positions, tested_.channels};
  std::optional<cuda::ProductDevice> device_;
  std::vector<float> x_;
  std::vector<float> filter_;  // [depth, channels]

  /// The filter as the forward pass stores it: [channels, depth].
  std::vector<float> transposed_filter() const {
    std::vector<float> values(filter_.size());
    for (std::size_t k = 0; k < tested_.depth; ++k) {
      for (std::size_t c = 0; c < tested_.channels; ++c)
        values[c * tested_.depth + k] = filter_[k * tested_.channels + c];
    }
    return values;
  }
  /// The exact product [positions, channels].
  std::vector<double> multiply() {
    const auto& [depth, channels, positions, blocks] = tested_;
    x_ = elements_of(kMath, positions * depth, 11);
    filter_ = elements_of(kMath, depth * channels, 50000011);
    std::vector<double> product(positions * channels);
    for (std::size_t p = 0; p < positions; ++p) {
      double* const row = product.data() + p * channels;
      for (std::size_t k = 0; k < depth; ++k) {
        const double value = x_[p * depth + k];
        const float* const of_k = filter_.data() + k * channels;
        for (std::size_t c = 0; c < channels; ++c) row[c] += value * static_cast<double>(of_k[c]);
      }
    }
    return product;
  }
};

/// The largest difference of a product from the exact one after it was stored.
double rounding(double exact) { return std::abs(exact) / 256 + 1e-4; }

/// The values, followed by a row that no kernel may write.
std::vector<float> guarded(std::vector<float> values, std::size_t channels) {
  values.resize(values.size() + channels, kUnset);
  return values;
}

void expect_guarded(const std::vector<float>& values, std::size_t channels) {
  for (std::size_t c = 1; c <= channels; ++c) ASSERT_EQ(values[values.size() - c], kUnset);
}

/// The results of product_statistics().
struct ProductRun {
  std::vector<float> y;
  std::vector<float> own;
  std::vector<float> running;
  bool operator==(const ProductRun&) const = default;
};

TEST_P(ResnetProducts, TakeTheStatisticsOfWhatTheyWrite) {
  const auto& [depth, channels, positions, blocks] = tested_;
  const std::vector<double> expected = multiply();
  const Elements x(kMath, x_), filter(kMath, transposed_filter());
  const Sums sums(channels);
  const auto run = [&](cuda::Ranks ranks) {
    const Norm norm(channels, 31);
    const Elements y(kMath, guarded(std::vector<float>(expected.size(), kUnset), channels));
    cuda::product_statistics(*device_, shape_, {depth, x.data(), filter.data()}, y.data(), norm.place(), sums.place(),
                             ranks, kStream);
    std::vector<float> running = norm.running_mean.read();
    const std::vector<float> variance = norm.running_variance.read();
    running.insert(running.end(), variance.begin(), variance.end());
    return ProductRun{y.read(), norm.own.read(), running};
  };
  const ProductRun got = run(cuda::Ranks::kOwn);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(got.y[i], expected[i], rounding(expected[i])) << i;
  expect_guarded(got.y, channels);

  const std::vector<float> stored(got.y.begin(), got.y.end() - static_cast<std::ptrdiff_t>(channels));
  const std::vector<float> before = Norm(channels, 31).running_mean.read();
  const ProductRun of_ranks = run(cuda::Ranks::kAll);
  EXPECT_EQ(of_ranks.y, got.y);
  const auto count = static_cast<double>(positions);
  for (std::size_t c = 0; c < channels; ++c) {
    const Moments moments(stored, channels, c);
    const double variance = std::pow(moments.inverse, -2) - 1e-5;
    const double tolerance = 3e-5 * (1 + variance);  // a square of some dozens was rounded
    ASSERT_NEAR(got.own[2 * channels + c], moments.mean, 1e-5) << c;
    ASSERT_NEAR(std::pow(static_cast<double>(got.own[3 * channels + c]), -2) - 1e-5, variance, tolerance) << c;
    ASSERT_NEAR(got.running[c], 0.9 * static_cast<double>(before[c]) + 0.1 * moments.mean, 1e-5) << c;
    ASSERT_NEAR(of_ranks.own[2 * channels + c], moments.mean, 1e-5) << c;
    ASSERT_NEAR(of_ranks.own[3 * channels + c] / count, variance, tolerance) << c;
    ASSERT_EQ(of_ranks.running[c], before[c]) << c;
  }
  EXPECT_EQ(run(cuda::Ranks::kOwn), got) << "the same bits again";
}

enum class Second { kNone, kKept, kWrittenOver };

/// The arrays at the end of a block. product_sums_block() computes their sums.
struct BlockEnd {
  BlockEnd(std::size_t channels, const std::vector<float>& x, const std::vector<float>& others,
           const std::vector<float>& g2, const std::vector<std::uint8_t>& passing)
      : x(kMath, x),
        other(kMath, others),
        second(kMath, g2),
        dz(kMath, std::vector<float>(g2.size(), kUnset)),
        passes(passing),
        norm(channels, 31),
        shortcut_norm(channels, 77),
        sums(channels) {}

  Elements x, other, second, dz;
  OnDevice<std::uint8_t> passes;
  Norm norm, shortcut_norm;
  Sums sums;
};

/// Checks the gradients of shift and scale, for the mean and deviation that the normalisation has.
void expect_sums(const Norm& norm, const std::vector<double>& dz, const std::vector<float>& x) {
  const std::size_t channels = norm.channels;
  const std::vector<float> gradients = norm.gradients.read();
  const std::vector<float> own = norm.own.read();
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = own[2 * channels + c];
    const double inverse = own[3 * channels + c];
    double shift = 0;
    double scale = 0;
    double size = 0;  // of the terms of the sums
    for (std::size_t i = c; i < x.size(); i += channels) {
      const double normal = (static_cast<double>(x[i]) - mean) * inverse;
      shift += dz[i];
      scale += dz[i] * normal;
      size += std::abs(dz[i]) * (1 + std::abs(normal));
    }
    ASSERT_NEAR(gradients[c], scale, 1e-5 * (1 + size)) << c;
    ASSERT_NEAR(gradients[channels + c], shift, 1e-5 * (1 + size)) << c;
  }
}

TEST_P(ResnetProducts, LeadTheGradientBackToABlocksEnd) {
  const auto& [depth, channels, positions, blocks] = tested_;
  const std::vector<double> product = multiply();
  const std::size_t elements = product.size();
  const Elements gradient(kMath, x_), filter(kMath, filter_);
  const std::vector<float> values = elements_of(kMath, elements, 7), others = elements_of(kMath, elements, 100000007);
  const std::vector<float> g2 = elements_of(kMath, elements, 200000007);
  std::vector<std::uint8_t> passing(elements / 8);
  for (std::size_t i = 0; i < passing.size(); ++i)
    passing[i] = static_cast<std::uint8_t>(128 + 128 * testing::uniform_at(i + 300000007));
  for (const bool has_shortcut : {false, true}) {
    for (const Second kind : {Second::kNone, Second::kKept, Second::kWrittenOver}) {
      SCOPED_TRACE(std::string(has_shortcut ? "with" : "without") + " a shortcut, second gradient " +
                   std::to_string(static_cast<int>(kind)));
      const BlockEnd end(channels, values, others, guarded(g2, channels), passing);
      const auto run = [&](cuda::Ranks ranks) {
        for (const auto& [x, norm] : {std::pair(&end.x, &end.norm), std::pair(&end.other, &end.shortcut_norm)})
          cuda::statistics(kMath, shape_, x->data(), norm->place(), end.sums.place(), cuda::Ranks::kOwn, kStream);
        const cuda::NormSide side{end.x.data(), end.norm.place(), nullptr, end.sums.sums.data()};
        const cuda::NormSide shortcut{end.other.data(), end.shortcut_norm.place(), nullptr,
                                      end.sums.sums.data() + 2 * channels + 1};
        const Elements& dz = kind == Second::kWrittenOver ? end.second : end.dz;
        cuda::product_sums_block(*device_, shape_, {depth, gradient.data(), filter.data()},
                                 kind == Second::kNone ? nullptr : end.second.data(), end.passes.data(), dz.data(),
                                 side, has_shortcut ? &shortcut : nullptr, end.sums.place(), ranks, kStream);
        return dz.read();
      };
      const std::vector<float> passed = run(cuda::Ranks::kOwn);
      std::vector<double> dz(elements);
      for (std::size_t i = 0; i < elements; ++i) {
        const double more = kind == Second::kNone ? 0.0F : g2[i];
        dz[i] = (passing[i / 8] >> i % 8 & 1) == 0 ? 0.0 : product[i] + more;
        ASSERT_NEAR(passed[i], dz[i], rounding(dz[i])) << i;
      }
      expect_guarded(passed, channels);
      expect_sums(end.norm, dz, values);
      if (has_shortcut) expect_sums(end.shortcut_norm, dz, others);
      if (kind == Second::kWrittenOver) continue;

      // The sums over ranks are the gradients times the number of positions. A second run gives the same bits.
      const std::vector<float> gradients = end.norm.gradients.read();
      const std::vector<float> of_shortcut = end.shortcut_norm.gradients.read();
      EXPECT_EQ(run(cuda::Ranks::kAll), passed);
      const std::vector<float> sums = end.sums.sums.read();
      const auto count = static_cast<float>(positions);
      for (std::size_t c = 0; c < channels; ++c) {
        ASSERT_FLOAT_EQ(sums[c], gradients[channels + c] * count) << c;
        if (!has_shortcut) continue;
        ASSERT_FLOAT_EQ(sums[2 * channels + 1 + c], of_shortcut[channels + c] * count) << c;
      }
      ASSERT_EQ(sums[2 * channels], count);
    }
  }
}

std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> cases;
  for (const std::size_t depth : {64, 128, 256}) {
    for (const std::size_t channels : {256, 1024}) {
      for (const std::size_t positions : {1, 127, 128, 1000}) cases.push_back({depth, channels, positions});
    }
    cases.push_back({depth, 512, 20011});
    cases.push_back({depth, 256, 20011, 1});  // one block has many tiles and uses each stage repeatedly
  }
  return cases;
}
std::string name_of(const ::testing::TestParamInfo<ProductCase>& info) {
  const auto& [depth, channels, positions, blocks] = info.param;
  return std::to_string(depth) + "To" + std::to_string(channels) + "At" + std::to_string(positions) +
         (blocks > 0 ? "By" + std::to_string(blocks) : "");
}
INSTANTIATE_TEST_SUITE_P(, ResnetProducts, ::testing::ValuesIn(product_cases()), name_of);

TEST(ResnetProductSizes, AreThoseOfTheFirstStages) {
  EXPECT_TRUE(cuda::has_product(64, 256));
  EXPECT_TRUE(cuda::has_product(128, 512));
  EXPECT_TRUE(cuda::has_product(256, 1024));
  EXPECT_FALSE(cuda::has_product(64, 64));
  EXPECT_FALSE(cuda::has_product(256, 128));
  EXPECT_FALSE(cuda::has_product(512, 2048));
}

}  // namespace
}  // namespace resnet

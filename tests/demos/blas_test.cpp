#include "demos/common/blas.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/demos/gradient_check.hpp"

namespace demos {
namespace {

using testing::noise;

/// The product by its definition, one element at a time.
std::vector<double> by_definition(Transpose ta, Transpose tb, GemmShape s, const std::vector<double>& a,
                                  const std::vector<double>& b, double beta, std::vector<double> c) {
  for (std::size_t i = 0; i < s.m; ++i) {
    for (std::size_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (std::size_t p = 0; p < s.k; ++p) {
        sum += (ta == Transpose::kYes ? a[p * s.m + i] : a[i * s.k + p]) *
               (tb == Transpose::kYes ? b[j * s.k + p] : b[p * s.n + j]);
      }
      c[i * s.n + j] = sum + beta * c[i * s.n + j];
    }
  }
  return c;
}

template <typename T, typename From>
std::vector<T> converted(const std::vector<From>& values) {
  return {values.begin(), values.end()};
}

/// Multiplies matrices of one size with every combination of transposes, and with several betas.
class Gemm : public ::testing::TestWithParam<GemmShape> {
 protected:
  template <typename T, typename Multiply>
  void expect_products(Multiply multiply, double tolerance) {
    for (const auto ta : {Transpose::kNo, Transpose::kYes}) {
      for (const auto tb : {Transpose::kNo, Transpose::kYes}) {
        for (const T beta : {T{0}, T{1}, T{0.5}}) expect_product<T>(multiply, ta, tb, beta, tolerance);
      }
    }
  }

 private:
  template <typename T, typename Multiply>
  void expect_product(Multiply multiply, Transpose ta, Transpose tb, T beta, double tolerance) {
    const GemmShape shape = GetParam();
    const auto a = converted<T>(noise(shape.m * shape.k, 1));
    const auto b = converted<T>(noise(shape.k * shape.n, 2));
    const auto c = converted<T>(noise(shape.m * shape.n, 3));
    auto result = c;
    multiply(ta, tb, shape, a.data(), b.data(), beta, result.data());
    const auto expected =
        by_definition(ta, tb, shape, converted<double>(a), converted<double>(b), double{beta}, converted<double>(c));
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(result[i], expected[i], tolerance) << i;
  }
};

TEST_P(Gemm, IsTheProductInDouble) { expect_products<double>(gemm<double>, 1e-12); }
TEST_P(Gemm, IsTheProductInFloat) { expect_products<float>(gemm<float>, 1e-4); }
TEST_P(Gemm, WithoutBlasIsTheProductInDouble) { expect_products<double>(gemm_portable<double>, 1e-12); }
TEST_P(Gemm, WithoutBlasIsTheProductInFloat) { expect_products<float>(gemm_portable<float>, 1e-4); }

INSTANTIATE_TEST_SUITE_P(Sizes, Gemm,
                         ::testing::Values(GemmShape{1, 1, 1}, GemmShape{3, 5, 7}, GemmShape{64, 128, 128},
                                           GemmShape{67, 131, 257}, GemmShape{4, 300, 1}, GemmShape{5, 3, 0},
                                           GemmShape{0, 3, 5}, GemmShape{3, 0, 5}));

TEST(GemmOutput, WithBetaZeroIsOnlyWritten) {
  const std::vector<double> one{1};
  for (const auto multiply : {gemm<double>, gemm_portable<double>}) {
    std::vector<double> c{std::numeric_limits<double>::quiet_NaN()};
    multiply(Transpose::kNo, Transpose::kNo, {1, 1, 1}, one.data(), one.data(), 0.0, c.data());
    EXPECT_EQ(c[0], 1);
  }
}

}  // namespace
}  // namespace demos

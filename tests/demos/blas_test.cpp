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
                                  const std::vector<double>& b) {
  std::vector<double> c(s.m * s.n);
  for (std::size_t i = 0; i < s.m; ++i) {
    for (std::size_t j = 0; j < s.n; ++j) {
      for (std::size_t p = 0; p < s.k; ++p) {
        c[i * s.n + j] += (ta == Transpose::kYes ? a[p * s.m + i] : a[i * s.k + p]) *
                          (tb == Transpose::kYes ? b[j * s.k + p] : b[p * s.n + j]);
      }
    }
  }
  return c;
}

template <typename T, typename Multiply>
void expect_products(Multiply multiply, double tolerance) {
  constexpr GemmShape kShapes[] = {{1, 1, 1},   {3, 5, 7}, {64, 128, 128}, {67, 131, 257},
                                   {4, 300, 1}, {5, 3, 0}, {0, 3, 5},      {3, 0, 5}};
  for (const GemmShape& shape : kShapes) {
    const std::vector<double> a = noise(shape.m * shape.k, 1), b = noise(shape.k * shape.n, 2);
    const std::vector<double> c = noise(shape.m * shape.n, 3);
    for (const auto& [ta, tb] :
         {std::pair{Transpose::kNo, Transpose::kNo}, std::pair{Transpose::kNo, Transpose::kYes},
          std::pair{Transpose::kYes, Transpose::kNo}, std::pair{Transpose::kYes, Transpose::kYes}}) {
      const std::vector<double> product = by_definition(ta, tb, shape, a, b);
      for (const double beta : {0.0, 1.0, 0.5}) {
        const std::vector<T> left(a.begin(), a.end()), right(b.begin(), b.end());
        std::vector<T> result(c.begin(), c.end());
        // With a beta of 0, the result is only written.
        if (beta == 0) result.assign(c.size(), std::numeric_limits<T>::quiet_NaN());
        multiply(ta, tb, shape, left.data(), right.data(), static_cast<T>(beta), result.data());
        for (std::size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(result[i], product[i] + beta * c[i], tolerance) << i;
      }
    }
  }
}

TEST(Gemm, IsTheProduct) {
  expect_products<double>(gemm<double>, 1e-12);
  expect_products<float>(gemm<float>, 1e-4);
}

TEST(Gemm, IsTheProductWithoutBlas) {
  expect_products<double>(gemm_portable<double>, 1e-12);
  expect_products<float>(gemm_portable<float>, 1e-4);
}

}  // namespace
}  // namespace demos

#pragma once

// Derivatives by central differences, which tests compare with those of a backward pass.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "demos/common/philox.hpp"

namespace demos::testing {

/// Values in (-1, 1) that are the same in every run.
inline std::vector<double> noise(std::size_t count, std::uint64_t seed) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 2 * to_unit_interval(philox4x32_10({static_cast<std::uint32_t>(i), 0, 0, 0}, seed)[0]) - 1;
  }
  return values;
}

/// Expects d loss / d values[i] to be gradient[i] for every `stride`-th i. `loss` is a function of `values`.
template <typename Loss>
void expect_gradient(std::vector<double>& values, std::span<const double> gradient, Loss loss, std::size_t stride = 1) {
  constexpr double kStep = 1e-6;
  constexpr double kTolerance = 1e-7;
  ASSERT_EQ(values.size(), gradient.size());
  for (std::size_t i = 0; i < values.size(); i += stride) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = loss();
    values[i] = value - kStep;
    const double below = loss();
    values[i] = value;
    const double slope = (above - below) / (2 * kStep);
    ASSERT_NEAR(gradient[i], slope, kTolerance * (1 + std::abs(slope))) << "element " << i;
  }
}

}  // namespace demos::testing

#include "demos/resnet/network/parameters.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>

#include "demos/common/philox.hpp"

namespace resnet {
namespace {

/// Separates these draws from other draws with the same seed.
constexpr std::uint32_t kParameterDraws = 0x696E6974;

using FourNumbers = std::array<double, 4>;

/// Four uniform numbers in (0, 1), for the elements of the parameters from 4 * `block` on.
FourNumbers uniform(std::uint64_t block, std::uint64_t seed) {
  const demos::PhiloxCounter words = demos::philox4x32_10(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, kParameterDraws}, seed);
  FourNumbers numbers{};
  std::transform(words.begin(), words.end(), numbers.begin(), demos::to_unit_interval);
  return numbers;
}

/// Four normally distributed numbers with mean 0 and variance 1. Source: G. Box, M. Muller, "A Note on the Generation
/// of Random Normal Deviates", Ann. Math. Stat. 29 (1958).
FourNumbers normal(std::uint64_t block, std::uint64_t seed) {
  FourNumbers numbers = uniform(block, seed);
  for (const std::size_t i : {0, 2}) {
    const double radius = std::sqrt(-2 * std::log(numbers[i]));
    const double angle = 2 * std::numbers::pi * numbers[i + 1];
    numbers[i] = radius * std::cos(angle);
    numbers[i + 1] = radius * std::sin(angle);
  }
  return numbers;
}

/// Fills an array of the parameters. Arrays start at multiples of 4, so no two arrays share a draw.
template <class Draw>
void fill(std::vector<float>& params, std::size_t offset, std::size_t elements, const Draw& draw) {
  for (std::size_t i = 0; i < elements; i += 4) {
    const FourNumbers numbers = draw((offset + i) / 4);
    for (std::size_t k = 0; k < 4 && i + k < elements; ++k) params[offset + i + k] = static_cast<float>(numbers[k]);
  }
}

void fill_filters(std::vector<float>& params, const ConvUnit& unit, std::uint64_t seed) {
  const double deviation = std::sqrt(2.0 / static_cast<double>(unit.channels_out * unit.kernel * unit.kernel));
  fill(params, unit.weights_offset, unit.weights(), [&](std::uint64_t block) {
    FourNumbers numbers = normal(block, seed);
    for (double& number : numbers) number *= deviation;
    return numbers;
  });
}

void fill_scales(std::vector<float>& params, const ConvUnit& unit, float scale) {
  std::fill_n(params.begin() + static_cast<std::ptrdiff_t>(unit.scale_offset), unit.channels_out, scale);
}

void fill_dense(std::vector<float>& params, const Architecture& architecture, std::uint64_t seed) {
  const double bound = 1 / std::sqrt(static_cast<double>(architecture.features));
  const auto draw = [&](std::uint64_t block) {
    FourNumbers numbers = uniform(block, seed);
    for (double& number : numbers) number = (2 * number - 1) * bound;
    return numbers;
  };
  const std::size_t classes = architecture.spec.classes;
  fill(params, architecture.fc_weights_offset, classes * architecture.features, draw);
  fill(params, architecture.fc_bias_offset, classes, draw);
}

}  // namespace

std::vector<float> initial_parameters(const Architecture& architecture, std::uint64_t seed, ResidualScale last_scale) {
  std::vector<float> params(architecture.parameter_count);
  for (const ConvUnit& unit : architecture.units) {
    fill_filters(params, unit, seed);
    fill_scales(params, unit, 1);
  }
  if (last_scale == ResidualScale::kZero) {
    for (const Block& block : architecture.blocks) {
      fill_scales(params, architecture.units[block.first_unit + block.unit_count - 1], 0);
    }
  }
  fill_dense(params, architecture, seed);
  return params;
}

std::vector<float> initial_statistics(const Architecture& architecture) {
  std::vector<float> statistics(architecture.statistics_count);
  for (const ConvUnit& unit : architecture.units) {
    const auto variances = static_cast<std::ptrdiff_t>(unit.statistics_offset + unit.channels_out);
    std::fill_n(statistics.begin() + variances, unit.channels_out, 1.0F);
  }
  return statistics;
}

}  // namespace resnet

#include "demos/gpt/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "demos/common/philox.hpp"

namespace gpt {
namespace {

/// Keeps these draws apart from others with the same seed.
constexpr std::uint32_t kSamplingPurpose = 0x73616d70;

}  // namespace

std::int64_t choose_token(std::span<const float> scores, const SamplingOptions& options, std::uint64_t seed,
                          std::int64_t position) {
  std::vector<std::size_t> tokens(scores.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  const auto count = std::min(scores.size(), static_cast<std::size_t>(std::max<std::int64_t>(options.top_k, 1)));
  std::partial_sort(
      tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), tokens.end(),
      [&](std::size_t a, std::size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  if (options.temperature == 0) return static_cast<std::int64_t>(tokens[0]);

  std::vector<double> sums(count);  // of the probabilities so far, up to a common factor
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += std::exp((static_cast<double>(scores[tokens[i]]) - static_cast<double>(scores[tokens[0]])) /
                    options.temperature);
    sums[i] = sum;
  }
  const auto number = static_cast<std::uint64_t>(position);
  const auto words = demos::philox4x32_10(
      {0, static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32U), kSamplingPurpose}, seed);
  const double drawn = demos::to_unit_interval(words[0]) * sum;
  const auto chosen = std::upper_bound(sums.begin(), sums.end() - 1, drawn) - sums.begin();
  return static_cast<std::int64_t>(tokens[static_cast<std::size_t>(chosen)]);
}

}  // namespace gpt

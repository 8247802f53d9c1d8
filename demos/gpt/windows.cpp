#include "demos/gpt/windows.hpp"

#include <algorithm>

#include "demos/common/philox.hpp"

namespace gpt {
namespace {

/// Philox numbers its draws by four words. This one keeps the draws for windows apart from others with the same seed.
constexpr std::uint32_t kPurpose = 0x77696e64;

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }

}  // namespace

std::vector<std::int64_t> random_windows(const WindowRange& range, std::int64_t count, std::uint64_t seed,
                                         std::int64_t step) {
  const auto places = static_cast<std::uint64_t>(range.tokens - range.length + 1);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(count));
  const auto number = static_cast<std::uint64_t>(step);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto words = demos::philox4x32_10({low(i), low(number), low(number >> 32U), kPurpose}, seed);
    // The remainder favours some places over others by at most places / 2^64.
    starts[i] = static_cast<std::int64_t>(((std::uint64_t{words[0]} << 32U) | words[1]) % places);
  }
  return starts;
}

std::vector<std::int64_t> spread_windows(const WindowRange& range, std::int64_t most) {
  const std::int64_t stride = range.length - 1;
  const std::int64_t all = (range.tokens - 1) / stride;
  const std::int64_t count = most == 0 ? all : std::min(most, all);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) starts[static_cast<std::size_t>(i)] = i * all / count * stride;
  return starts;
}

}  // namespace gpt

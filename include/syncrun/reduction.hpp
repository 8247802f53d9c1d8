#pragma once

// How values from several ranks, or several slices, become one.

#include <cstdint>
#include <string_view>

#include "syncrun/detail/export.hpp"

namespace syncrun {

enum class Reduction : std::uint8_t {
  avg,     ///< Mean, each rank (and slice) weighted by the rows it computed: exact for unequal shares.
  sum,     ///< Sum in rank order.
  min,     ///< Smallest.
  max,     ///< Largest.
  prod,    ///< Product in rank order.
  gather,  ///< Not reduced: concatenated along the rows, in rank order (slices in their order).
};

/// "avg", "sum", ...
SYNCRUN_EXPORT std::string_view to_string(Reduction reduction) noexcept;

/// The operations as types, for signatures: `Update<op::sum, float, 1>`.
namespace op {
// clang-format off
struct avg  { static constexpr Reduction value = Reduction::avg; };
struct sum  { static constexpr Reduction value = Reduction::sum; };
struct min  { static constexpr Reduction value = Reduction::min; };
struct max  { static constexpr Reduction value = Reduction::max; };
struct prod { static constexpr Reduction value = Reduction::prod; };
// clang-format on
}  // namespace op

}  // namespace syncrun

#pragma once

// Reduction: how values from several ranks, or from several slices, are combined into one. In
// `op`, each reduction is a type, and `value` is its Reduction.

#include <cstdint>
#include <string_view>

#include "syncrun/detail/export.hpp"

namespace syncrun {

/// How values of several ranks or slices become one.
enum class Reduction : std::uint8_t {
  /// Mean. In functions, the weight of each rank and slice is its number of rows, so the result is the exact mean over
  /// all rows, even if the shares differ.
  avg,
  sum,     ///< Sum in rank order.
  min,     ///< Smallest. NaN if one of the values is NaN.
  max,     ///< Largest. NaN if one of the values is NaN.
  prod,    ///< Product in rank order.
  gather,  ///< No reduction: the values are concatenated along the rows, in the order of the ranks and slices.
};         // gather stays the last one: by its number, the code for GPUs notices a new reduction

/// The name of a reduction: "avg", "sum", ...
SYNCRUN_EXPORT std::string_view to_string(Reduction reduction) noexcept;

/// The reductions as types, for the signatures of functions: `Update<op::sum, float, 1>`.
namespace op {
// clang-format off
struct avg  { static constexpr Reduction value = Reduction::avg; };   ///< The mean, weighted by rows.
struct sum  { static constexpr Reduction value = Reduction::sum; };   ///< The sum.
struct min  { static constexpr Reduction value = Reduction::min; };   ///< The smallest.
struct max  { static constexpr Reduction value = Reduction::max; };   ///< The largest.
struct prod { static constexpr Reduction value = Reduction::prod; };  ///< The product.
// clang-format on
}  // namespace op

}  // namespace syncrun

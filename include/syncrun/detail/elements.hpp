#pragma once

// The numbers, elements and ranges of elements that the public classes accept.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ranges>
#include <type_traits>
#include <utility>

#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail {

/// Converts an extent to int64. An extent that is too large becomes the largest int64, and not a negative number.
template <std::integral Extent>
constexpr std::int64_t to_extent(Extent extent) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if constexpr (std::same_as<Extent, bool> || sizeof(Extent) < sizeof(std::int64_t)) return extent;
  else return std::cmp_greater(extent, kMost) ? kMost : static_cast<std::int64_t>(extent);
}

/// The number of elements of a range. A view has a signed size, a container an unsigned one.
template <std::ranges::sized_range R>
constexpr std::size_t count_of(R&& values) {
  return static_cast<std::size_t>(std::ranges::size(values));
}

template <class R, class T>
concept ValuesOf = std::ranges::contiguous_range<R> && std::same_as<std::ranges::range_value_t<R>, T>;

template <class A, class B>
concept SameElements = Element<std::ranges::range_value_t<A>> &&
                       std::same_as<std::ranges::range_value_t<A>, std::ranges::range_value_t<B>>;

/// The number types that from_chars and to_chars accept.
template <class V>
concept Number = std::is_arithmetic_v<V> && !std::same_as<V, bool> && !std::same_as<V, char>;

template <Reduction kReduction, class T>
constexpr bool kCanReduce =
    kReduction == Reduction::gather || (kReduction == Reduction::avg ? FloatingElement<T> : !std::is_same_v<T, bool>);

}  // namespace syncrun::detail

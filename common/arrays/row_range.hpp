#pragma once

// The division of rows into parts: in order, as evenly as possible, and with each row in exactly one part.

#include <algorithm>
#include <cstdint>

namespace syncrun::detail::arrays {

struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const noexcept { return end - begin; }
};

/// Part `index` of `parts` of the rows [0, rows). The first rows % parts parts have one row more than the others.
constexpr RowRange share_of(std::int64_t rows, std::int64_t parts, std::int64_t index) noexcept {
  const std::int64_t each = rows / parts;
  const std::int64_t more = rows % parts;
  const std::int64_t begin = index * each + std::min(index, more);
  return {begin, begin + each + (index < more ? 1 : 0)};
}

}  // namespace syncrun::detail::arrays

#pragma once

// Arithmetic on the extents of arrays whose number of dimensions is known only at run time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/text/errors.hpp"
#include "syncrun/array.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun::detail::arrays {

/// The number of elements of an array: the product of its extents. The caller has checked the extents.
inline std::size_t elements_in(std::span<const std::int64_t> extents) noexcept {
  std::size_t count = 1;
  for (const auto extent : extents) count *= static_cast<std::size_t>(extent);
  return count;
}

/// The bytes of one row, that is, of all dimensions except the first.
inline std::size_t row_bytes_of(DType dtype, std::span<const std::int64_t> extents) noexcept {
  return extents.empty() ? size_of(dtype) : elements_in(extents.subspan(1)) * size_of(dtype);
}

/// The bytes of an array. Throws Error (usage) if an extent is negative or the size overflows.
inline std::size_t checked_bytes(DType dtype, std::span<const std::int64_t> extents) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool is_empty = false;
  bool overflows = false;
  for (const auto extent : extents) {
    if (extent < 0) text::throw_usage("extents of a shape are at least 0, got " + syncrun::to_string(extents));
    if (extent == 0) is_empty = true;
    else overflows = overflows || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (is_empty) return 0;
  if (overflows) {
    text::throw_usage("the size of shape " + syncrun::to_string(extents) + " of " + std::string(to_string(dtype)) +
                      " overflows");
  }
  return static_cast<std::size_t>(bytes);
}

/// A type for messages, for example "float32, 2 dimensions".
inline std::string describe_type(DType dtype, std::size_t dimensions) {
  return std::string(to_string(dtype)) + ", " + std::to_string(dimensions) +
         (dimensions == 1 ? " dimension" : " dimensions");
}

}  // namespace syncrun::detail::arrays

#pragma once

// Headers of NumPy's .npy files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): read from bytes
// that may be anything, and written.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "syncrun/dtype.hpp"

namespace syncrun::detail {

/// What a .npy file says of its array. The elements follow from `data_offset` on: little-endian, in C order.
struct NpyHeader {
  DType dtype{};
  std::vector<std::int64_t> shape;  ///< At most kMaxDimensions extents, none negative; empty: a single number.
  std::size_t data_offset = 0;      ///< Bytes before the elements.
};

/// Bytes at the front of a file that are enough for any header this reads.
inline constexpr std::size_t kLongestNpyHeader = std::size_t{1} << 16U;

/// Reads the header at the front of `bytes`, which may be the whole file or its first kLongestNpyHeader bytes: format 1.0,
/// 2.0 or 3.0. An element type of two bytes without a meaning ('|V2', '<V2') is bfloat16, as ml_dtypes writes it. Throws
/// Error (usage) with what was expected and what was found: also for big-endian numbers, Python objects, records, Fortran
/// order, and a shape whose size in bytes overflows. Looks at nothing outside of `bytes`.
NpyHeader parse_npy_header(std::span<const std::byte> bytes);

/// Bytes of the elements. Throws Error (usage) unless a file of that length has exactly those after the header.
std::size_t npy_data_bytes(const NpyHeader& header, std::uint64_t file_bytes);

/// The front of a file that holds such an array: format 1.0, padded so that the elements are aligned to 64 bytes.
std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

}  // namespace syncrun::detail

#pragma once

// Reads and writes the headers of NumPy's .npy files
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html). The bytes to be read may be anything.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "syncrun/dtype.hpp"

namespace syncrun::detail::arrays {

/// What the header of a .npy file says about its array. The elements begin at `data_offset`. They are little-endian and
/// in C order.
struct NpyHeader {
  DType dtype{};
  std::vector<std::int64_t> shape;  ///< At most kMaxDimensions extents, none negative; empty: a single number.
  std::size_t data_offset = 0;      ///< Bytes before the elements.
};

/// The longest header that parse_npy_header reads, in bytes from the front of the file.
inline constexpr std::size_t kLongestNpyHeader = std::size_t{1} << 16U;

/// Reads the header at the front of `bytes`, which may be the whole file or its first kLongestNpyHeader bytes. Supports
/// the formats 1.0, 2.0 and 3.0. Element types of two bytes without a meaning ('|V2', '<V2') are read as bfloat16,
/// because ml_dtypes writes bfloat16 in this form. Reads nothing outside of `bytes`. Throws Error (usage), with what
/// was expected and what was found. It also throws for big-endian numbers, Python objects, records, Fortran order, and
/// a shape whose size in bytes overflows.
NpyHeader parse_npy_header(std::span<const std::byte> bytes);

/// The bytes of the elements. Throws Error (usage) if a file of `file_bytes` bytes does not have exactly this many
/// after the header.
std::size_t npy_data_bytes(const NpyHeader& header, std::uint64_t file_bytes);

/// The header of a file for an array of this type and shape. It has format 1.0, and is padded so that the elements are
/// aligned to 64 bytes.
std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

}  // namespace syncrun::detail::arrays

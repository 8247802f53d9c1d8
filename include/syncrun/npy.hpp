#pragma once

// NumPy's .npy files without a session: what one holds, and its elements in memory of this process. What a session makes
// of them is Session::load and Session::map_npy, and checkpoint.hpp.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun {

/// What a .npy file says of itself.
struct NpyInfo {
  DType dtype{};
  std::vector<std::int64_t> shape;  ///< Empty: a single number.
};

/// Reads the header, and sees that the file is as long as its shape asks for; the elements are not looked at. Throws Error:
/// system if it cannot be read; usage, with what was expected and found, if it is damaged, truncated, or an array that
/// Syncrun does not take (big-endian, Fortran order, records, more than 6 dimensions, other element types).
SYNCRUN_EXPORT NpyInfo npy_info(const std::filesystem::path& file);

/// The elements. Throws as npy_info, and Error (usage) for another element type or number of dimensions.
template <Element T, std::size_t N>
Array<T, N> read_npy(const std::filesystem::path& file) {
  const auto opened = detail::open_npy(file, dtype_of<T>, N);
  Array<T, N> values(detail::to_shape<N>(detail::extents_of(*opened)));
  if (values.size() != 0) detail::read_elements(*opened, values.data());
  return values;
}

}  // namespace syncrun

#pragma once

// Functions that read NumPy's .npy files into memory of this process, without a session. With a session, use
// Session::load, Session::map_npy or checkpoint.hpp.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun {

struct NpyInfo;

/// Reads the elements of a .npy file. T and N must be the element type and the number of dimensions of the file. Throws
/// the same errors as npy_info(). Throws also Error (usage) if T or N does not match the file.
template <Element T, std::size_t N>
Array<T, N> read_npy(const std::filesystem::path& file) {
  const auto opened = detail::open_npy(file, dtype_of<T>, N);
  Array<T, N> values(detail::to_shape<N>(detail::extents_of(*opened)));
  if (values.size() != 0) detail::read_elements(*opened, values.data());
  return values;
}

/// Reads the header of a .npy file, and checks that the file is as long as its shape requires. Does not read the
/// elements. Throws Error: system if the file cannot be read; usage if the file is damaged or truncated, or if Syncrun
/// does not support its array. Syncrun does not support big-endian numbers, Fortran order, records, more than 6
/// dimensions, or element types that DType does not have. The message says what was expected and what was found.
SYNCRUN_EXPORT NpyInfo npy_info(const std::filesystem::path& file);

/// The contents of the header of a .npy file.
struct NpyInfo {
  DType dtype{};                    ///< The element type.
  std::vector<std::int64_t> shape;  ///< Empty if the file contains a single number.
};

}  // namespace syncrun

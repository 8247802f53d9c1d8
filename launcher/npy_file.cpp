// Reading .npy files without a session.

#include "syncrun/npy.hpp"

#include <algorithm>

#include "common/errors.hpp"
#include "launcher/array_file.hpp"

namespace syncrun {

namespace detail {

std::shared_ptr<const ArrayFile> open_npy(const std::filesystem::path& file, DType dtype, std::size_t dimensions) {
  auto opened = std::make_shared<ArrayFile>(file);
  opened->check_type(dtype, dimensions);
  return opened;
}

Extents extents_of(const ArrayFile& file) {
  Extents extents{};
  std::copy(file.header().shape.begin(), file.header().shape.end(), extents.begin());
  return extents;
}

void read_elements(const ArrayFile& file, void* values) { file.read(values); }

}  // namespace detail

NpyInfo npy_info(const std::filesystem::path& file) {
  const detail::ArrayFile opened(file);
  return {opened.header().dtype, opened.header().shape};
}

}  // namespace syncrun

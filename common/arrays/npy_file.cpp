// Reading .npy files without a session.

#include "syncrun/npy.hpp"

#include "common/arrays/array_file.hpp"
#include "common/text/errors.hpp"

namespace syncrun {

namespace detail {

std::shared_ptr<const arrays::ArrayFile> open_npy(const std::filesystem::path& file, DType dtype,
                                                  std::size_t dimensions) {
  auto opened = std::make_shared<arrays::ArrayFile>(file);
  opened->check_type(dtype, dimensions);
  return opened;
}

std::span<const std::int64_t> extents_of(const arrays::ArrayFile& file) noexcept { return file.header().shape; }

void read_elements(const arrays::ArrayFile& file, void* values) { file.read(values); }

}  // namespace detail

NpyInfo npy_info(const std::filesystem::path& file) {
  const detail::arrays::ArrayFile opened(file);
  return {opened.header().dtype, opened.header().shape};
}

}  // namespace syncrun

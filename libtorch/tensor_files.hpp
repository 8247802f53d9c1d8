#pragma once

// Files of tensors, read by a mapping. Uses no LibTorch. `replace_file` (common/arrays/replaced_file.hpp) writes them.

#include <cstddef>
#include <filesystem>
#include <span>

namespace syncrun::libtorch::detail {

/// A whole file, mapped to read. If the file becomes shorter later, a read of the missing part raises SIGBUS.
class FileBytes {
 public:
  /// Throws Error: system if the file cannot be opened or mapped, usage if it is not a regular file.
  explicit FileBytes(const std::filesystem::path& file);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace syncrun::libtorch::detail

#pragma once

// Files of tensors: reads by a mapping, and writes that replace the file as a whole. Uses no LibTorch.

#include <cstddef>
#include <filesystem>
#include <functional>
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

/// Writes a file through `fill`, which gets a function that appends bytes. The file has its old contents, or all of the
/// new ones, whatever happens: the bytes go to a temporary file beside it, which then replaces it. Throws Error
/// (system), and what `fill` throws.
using AppendBytes = std::function<void(const void* data, std::size_t bytes)>;
void replace_file(const std::filesystem::path& file, const std::function<void(const AppendBytes&)>& fill);

}  // namespace syncrun::libtorch::detail

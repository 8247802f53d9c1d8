#pragma once

// Files of arrays: .npy files, which any process reads, with their header checked; and files of a checkpoint, written so that
// they are on disk when that is said.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/file_descriptor.hpp"
#include "common/npy.hpp"

namespace syncrun::detail {

/// An open folder, and what it is called in messages.
struct Folder {
  FileDescriptor fd;
  std::filesystem::path path;
};

/// Throws Error (system).
Folder open_folder(const std::filesystem::path& path);

/// What this process wrote in the folder itself (names, not files) is on disk. Throws Error (system).
void sync(const Folder& folder);

/// Writes a file, in the place of one that is there, and waits until it is on disk. Throws Error (system).
void write_file(const Folder& folder, const std::string& name, std::string_view front, std::span<const std::byte> rest);

/// The whole file. Throws Error: system; usage if it is longer than `longest_bytes`.
std::string read_file(const Folder& folder, const std::string& name, std::size_t longest_bytes);

/// A .npy file, open to be read. It stays readable when its name is gone.
class ArrayFile {
 public:
  /// Throws Error: system; usage if it is no .npy file that can be read, or not as long as its shape asks for.
  ArrayFile(const Folder& folder, const std::string& name);
  explicit ArrayFile(const std::filesystem::path& path);

  const NpyHeader& header() const noexcept { return header_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// The file itself, for somebody else to own: it cannot be read from here any more.
  FileDescriptor take_descriptor() noexcept { return std::move(fd_); }
  /// Throws Error (usage), with both sides, unless its elements and number of dimensions are these.
  void check_type(DType dtype, std::size_t dimensions) const;
  /// The elements. Throws Error: system; usage if the file has become shorter.
  void read(void* values) const;

 private:
  ArrayFile(FileDescriptor fd, std::filesystem::path path);

  FileDescriptor fd_;
  std::filesystem::path path_;
  NpyHeader header_;
  std::size_t bytes_ = 0;
};

}  // namespace syncrun::detail

#pragma once

// Files of arrays. Any process can read .npy files, and their headers are checked. Checkpoint files are written so that
// they are on disk when the function returns.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/arrays/mapped_file.hpp"
#include "common/arrays/npy.hpp"
#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::arrays {

/// An open folder, and its path for messages.
struct Folder {
  os::FileDescriptor fd;
  std::filesystem::path path;
};

/// Opens a folder. Throws Error (system).
Folder open_folder(const std::filesystem::path& path);

/// Whether `name` in the folder is this open file. False if it now belongs to another file, or does not exist.
bool is_in_place(const os::FileDescriptor& fd, const Folder& folder, const std::string& name) noexcept;

/// Waits until the changes to the folder itself (the names in it, not the contents of files) are on disk. Throws Error
/// (system).
void sync(const Folder& folder);

/// Writes a file with the contents `front` and then `rest`, and waits until it is on disk. Replaces a file of that
/// name. Throws Error (system).
void write_file(const Folder& folder, const std::string& name, std::string_view front, std::span<const std::byte> rest);

/// Removes a file if it is there.
void remove_file(const Folder& folder, const std::string& name) noexcept;

/// Writes to an open file, beginning at its byte `at`. `path` is its path for messages. Throws Error (system).
void write_at(const os::FileDescriptor& fd, const std::filesystem::path& path, std::uint64_t at,
              std::span<const std::byte> bytes);
/// Waits until what was written to the file is on disk. Throws Error (system).
void sync_file(const os::FileDescriptor& fd, const std::filesystem::path& path);

/// Reads a whole file. Throws Error (system), or Error (usage) if it is longer than `longest_bytes`.
std::string read_file(const Folder& folder, const std::string& name, std::size_t longest_bytes);

/// A file that several processes write, each its own bytes.
class FilePart {
 public:
  /// Opens a file in a folder, and makes it if it does not exist. The folder outlives this object. Throws Error (system).
  FilePart(const Folder& folder, const std::string& name);
  /// Writes bytes, beginning at byte `at` of the file. Throws Error (system).
  void write(std::uint64_t at, std::span<const std::byte> bytes);
  /// Waits until what was written, and the name of the file, are on disk. Throws Error (system).
  void sync();

 private:
  const Folder& folder_;
  std::filesystem::path path_;
  os::FileDescriptor fd_;
};

/// The elements in an open file.
struct FileElements {
  os::FileDescriptor fd;
  std::filesystem::path path;   // for messages
  std::size_t elements_at = 0;  // bytes before the elements
  std::size_t bytes = 0;        // of the elements
};

/// Opens a file that has no header. Its elements of this type and shape begin `offset_bytes` bytes after its beginning,
/// and others may follow them. If the first extent is -1, it becomes the number of rows that the rest of the file has.
/// Throws Error: system (the file cannot be read), usage (an extent or the offset is negative, the elements would not be
/// aligned, the file is too short, or it does not end with a whole row although the first extent is -1).
FileElements open_raw_elements(const std::filesystem::path& path, DType dtype, std::span<std::int64_t> extents,
                               std::int64_t offset_bytes);

/// Opens a file to be mapped, and gives the form its extents. Throws the same errors as open_raw_elements(), or as
/// ArrayFile. Throws Error (usage) also if the elements are not aligned for their type.
FileElements open_elements(const std::filesystem::path& path, FileForm& form);

/// A .npy file, open for reading. It stays readable even if its name is removed.
class ArrayFile {
 public:
  /// Opens a file and reads its header. Throws Error (system), or Error (usage) if this is not a .npy file that Syncrun
  /// supports, or its length does not match its shape.
  ArrayFile(const Folder& folder, const std::string& name);
  explicit ArrayFile(const std::filesystem::path& path);

  const NpyHeader& header() const noexcept { return header_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Gives the open file to the caller. This object cannot read the file afterwards.
  FileElements take_elements() { return {std::move(fd_), path_, header_.data_offset, bytes_}; }
  /// Throws Error (usage) if the element type or the number of dimensions differs. The message contains what the file
  /// has and what was expected.
  void check_type(DType dtype, std::size_t dimensions) const;
  /// Reads all elements into memory of bytes(). Throws Error (system), or Error (usage) if the file has become shorter,
  /// or contains bools other than 0 and 1.
  void read(void* values) const;
  /// Reads `bytes` bytes of the elements, beginning with byte `at` of them. Throws the same errors.
  void read_part(std::size_t at, std::size_t bytes, void* values) const;

 private:
  ArrayFile(os::FileDescriptor fd, std::filesystem::path path);

  os::FileDescriptor fd_;
  std::filesystem::path path_;
  NpyHeader header_;
  std::size_t bytes_ = 0;
};

}  // namespace syncrun::detail::arrays

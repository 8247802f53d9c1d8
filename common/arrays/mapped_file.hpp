#pragma once

// Arrays in files. Each process that uses such a file maps it read-only, so all of them share the same pages of the
// page cache. If rows have to be copied anyway, Syncrun reads them with system calls and does not use the mapping. If
// the file has become shorter, a system call reports an error, while a read from the mapping raises a signal.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/export_for_cuda.hpp"
#include "common/os/file_descriptor.hpp"
#include "syncrun/array.hpp"
#include "syncrun/dtype.hpp"

namespace syncrun::detail::arrays {

/// What shows that a file was written to: its length, and when it was last written. Its other times do not count,
/// because a file that is renamed or removed keeps its contents.
struct FileState {
  std::int64_t bytes;
  std::int64_t written_s;   // since 1970
  std::int64_t written_ns;  // added to that
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// What a program expects of a file that it maps.
struct FileForm {
  DType dtype{};
  std::uint8_t dimensions = 0;
  bool has_header = true;         // it is a .npy file
  std::int64_t offset_bytes = 0;  // without a header: of the first element
  Extents extents{};              // without a header: see open_raw_elements()
};

/// In a path, this stands for the number of the node: each node maps its own file, with the rows of its ranks.
inline constexpr std::string_view kNodeInPath = "{node}";
bool names_node(std::string_view path) noexcept;
/// The path with the number in place of each kNodeInPath.
std::string path_on_node(std::string_view path, int node);

/// The master asks a node about its file. In the master's heap. The path, with kNodeInPath, follows.
struct FileQuestion {
  FileForm form;
  std::uint64_t path_bytes;
  char* path() noexcept { return reinterpret_cast<char*>(this + 1); }
  const char* path() const noexcept { return reinterpret_cast<const char*>(this + 1); }
};
/// The answer.
struct FileFacts {
  std::uint64_t elements_at;  // bytes before the elements
  std::uint64_t bytes;        // of the elements
  FileState state;
  Extents extents;
};

/// The file of one node, if each node has its own.
struct FilePartOfNode {
  std::uint64_t elements_at;
  std::uint64_t bytes;
  std::uint64_t begin;  // bytes of the array that are in the files of the nodes before
  FileState state;
};

/// A file, as the master describes it for the workers. In the master's heap. The name of the file follows it, for
/// messages. Workers of the master's node open the descriptor of the master and not the name, because another file may
/// have the name by then. Workers of other nodes open the name, and compare what they find with `fingerprint`, or with
/// their part if each node has a file of its own. Then the name contains kNodeInPath, and all else here is of the first
/// node. The parts, by node, stand before the name.
struct FileEntry {
  std::uint64_t id;
  std::uint64_t elements_at;  // bytes before the elements
  std::uint64_t bytes;        // of the elements
  std::int32_t master;        // process id of the master, which has the file open
  std::int32_t fd;            // descriptor of the file in the master
  FileState state;            // when the master mapped it
  std::uint64_t fingerprint;  // 0 if the session has one node, or each node its own file
  std::uint64_t parts_count;  // 0 if all nodes have the same file
  std::uint64_t name_bytes;
  FilePartOfNode* parts() noexcept { return reinterpret_cast<FilePartOfNode*>(this + 1); }
  const FilePartOfNode* parts() const noexcept { return reinterpret_cast<const FilePartOfNode*>(this + 1); }
  char* name() noexcept { return reinterpret_cast<char*>(parts() + parts_count); }
  const char* name() const noexcept { return reinterpret_cast<const char*>(parts() + parts_count); }
};

/// An open file, and the read-only mapping of its elements. They can be a part of an array, whose other elements are in
/// files of other nodes. All places are those in the whole array, and callers ask only for the elements of this file.
class MappedFile {
 public:
  /// Maps the file `fd`. Its elements take `bytes` bytes and begin at byte `elements_at`. Before them, the array has `begin`
  /// bytes. Throws Error (system).
  MappedFile(os::FileDescriptor fd, std::string name, std::size_t elements_at, std::size_t bytes,
             std::size_t begin = 0);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const noexcept { return name_; }
  int fd() const noexcept { return fd_.get(); }
  std::size_t elements_at() const noexcept { return elements_at_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// The first element of the array, which can be before the mapping. Null if the file has no elements. If the file was
  /// truncated, a read of the missing bytes raises SIGBUS; see FaultGuard.
  const std::byte* elements() const noexcept {
    if (mapping_ == nullptr) return nullptr;
    return reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(mapping_) + elements_at_ - begin_);
  }
  const std::byte* mapping() const noexcept { return mapping_; }
  std::size_t mapping_bytes() const noexcept { return mapping_ == nullptr ? 0 : elements_at_ + bytes_; }

  /// Copies `bytes` bytes of elements, beginning `at` bytes after the first element of the array. Any thread. Throws Error
  /// (system) if the file cannot be read, has become shorter, or was closed by the program.
  SYNCRUN_EXPORT_FOR_CUDA void read(std::size_t at, void* to, std::size_t bytes) const;
  /// Copies rows by index. The rows are taken one after the other: the function skips the first `skipped` bytes of this
  /// sequence and copies the next `bytes` bytes. Any thread. Throws the same errors as read.
  SYNCRUN_EXPORT_FOR_CUDA void read_rows(std::size_t row_bytes, std::span<const std::int64_t> indices,
                                         std::size_t skipped, void* to, std::size_t bytes) const;
  /// The file when it was mapped.
  const FileState& state() const noexcept { return state_; }
  /// Throws Error (system) if the file is not as it was in `expected`: it has become shorter, was written to, or was
  /// closed by the program. Called after the file was read, so that no result comes from two versions of it.
  void check_unchanged() const { check_is(state_); }
  void check_is(const FileState& expected) const;
  /// A hash of the length of the file, of the first 64 KiB before the elements, and of some of the elements: 16 blocks of
  /// 4 KiB in equal distances. Never 0. Two files with different contents may have the same one if they differ only between
  /// these blocks. Throws the same errors as read.
  std::uint64_t fingerprint() const;

 private:
  FileState state_now() const;
  [[noreturn]] void fail_truncated(std::size_t got) const;
  /// Throws Error (system) if the program has closed the descriptor. Without this check, another file that now has the
  /// number could be read.
  void check_intact() const;
  void read_on(std::size_t at, void* to, std::size_t bytes) const;
  void read_file(std::size_t at, void* to, std::size_t bytes) const;

  os::KeptDescriptor fd_;
  std::string name_;
  std::size_t elements_at_;
  std::size_t bytes_;
  std::size_t begin_;  // bytes of the array before those in this file
  FileState state_;
  std::byte* mapping_ = nullptr;
};

}  // namespace syncrun::detail::arrays

#pragma once

// Arrays in files: mapped read-only by every process that uses them, each by itself, so that the pages are shared as those
// of any file are. Rows are read by system calls where they are copied anyway: a file that has become shorter is an error
// there, and a signal where the mapping is read.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/export_for_cuda.hpp"
#include "common/file_descriptor.hpp"

namespace syncrun::detail {

/// A file as the workers find it; in the master's heap.
struct FileEntry {
  std::uint64_t id;
  std::uint64_t elements_at;  // bytes before them
  std::uint64_t bytes;        // of the elements
  std::int32_t master;        // the process that has it open,
  std::int32_t fd;            // and its descriptor there: by these it is the same file whatever has its name by now
  std::uint64_t name_bytes;   // the name follows, for messages
  char* name() noexcept { return reinterpret_cast<char*>(this + 1); }
  const char* name() const noexcept { return reinterpret_cast<const char*>(this + 1); }
};

/// The elements of a file that somebody has open, mapped read-only.
class MappedFile {
 public:
  /// Throws Error (system).
  MappedFile(FileDescriptor fd, std::string name, std::size_t elements_at, std::size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const noexcept { return name_; }
  int fd() const noexcept { return fd_.get(); }
  std::size_t elements_at() const noexcept { return elements_at_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Null where there are none. Reading what the file has no longer raises SIGBUS; see FaultGuard.
  const std::byte* elements() const noexcept { return mapping_ == nullptr ? nullptr : mapping_ + elements_at_; }
  const std::byte* mapping() const noexcept { return mapping_; }
  std::size_t mapping_bytes() const noexcept { return mapping_ == nullptr ? 0 : elements_at_ + bytes_; }

  /// Copies elements from `at` (bytes from the first) on. Any thread. Throws Error (system) where the file cannot be read,
  /// is no longer as long as it was, or was closed by the program.
  SYNCRUN_EXPORT_FOR_CUDA void read(std::size_t at, void* to, std::size_t bytes) const;
  /// The same for rows by index: `bytes` of what they are one after the other, from the byte `skipped` on.
  SYNCRUN_EXPORT_FOR_CUDA void read_rows(std::size_t row_bytes, std::span<const std::int64_t> indices,
                                         std::size_t skipped, void* to, std::size_t bytes) const;
  /// Throws Error (system) where the file is no longer as long as it was, or was closed by the program.
  void check_length() const;

 private:
  [[noreturn]] void fail_truncated(std::size_t got) const;
  /// Else another file, which has the number by now, would be read.
  void check_intact() const;
  void read_on(std::size_t at, void* to, std::size_t bytes) const;

  KeptDescriptor fd_;
  std::string name_;
  std::size_t elements_at_;
  std::size_t bytes_;
  std::byte* mapping_ = nullptr;
};

}  // namespace syncrun::detail

#pragma once

// Data that are files: mapped by the master and by the workers, each by itself, and only read.

#include <cstdint>
#include <memory>

#include "common/mapped_file.hpp"
#include "launcher/records.hpp"

namespace syncrun::detail {

class ArrayFile;

/// A file that is mapped here, and its entry, by which workers find it. When it goes, they unmap it.
class FileRecord {
 public:
  /// Throws Error (system).
  FileRecord(SessionCore& session, ArrayFile& file);
  ~FileRecord();
  FileRecord(const FileRecord&) = delete;
  FileRecord& operator=(const FileRecord&) = delete;

  const MappedFile& file() const noexcept { return file_; }
  std::uint64_t entry() const noexcept { return entry_; }

 private:
  SessionCore& session_;  // the Data's
  MappedFile file_;
  std::uint64_t id_;
  std::uint64_t entry_;  // offset in the segment
};

/// Throws Error (usage) if it is mapped from a file.
void check_can_change(const DataRecord& record);

}  // namespace syncrun::detail

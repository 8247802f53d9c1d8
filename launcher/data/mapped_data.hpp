#pragma once

// Arrays in files. The master and each worker map the file themselves, and only read it.

#include <cstdint>
#include <memory>

#include "common/arrays/mapped_file.hpp"
#include "launcher/calls/system_commands.hpp"
#include "launcher/records/records.hpp"
#include "launcher/records/registry.hpp"

namespace syncrun::detail {

struct FileElements;

/// A file that the master has mapped, and the entry in the segment by which workers find it. When it is destroyed, the
/// workers unmap the file.
class FileRecord {
 public:
  /// The workers that map the file: those of the master's node, or those of all nodes. On other nodes, they check that
  /// their file equals the master's.
  enum class Readers : std::uint8_t { this_node, all_nodes };

  /// Refers to the first two arguments as long as it lives. They belong to the session, which the Data keeps alive.
  /// Throws Error (system).
  FileRecord(SystemCommands& commands, Registry& registry, FileElements elements, Readers readers);
  ~FileRecord();
  FileRecord(const FileRecord&) = delete;
  FileRecord& operator=(const FileRecord&) = delete;

  const MappedFile& file() const noexcept { return file_; }
  std::uint64_t entry() const noexcept { return entry_; }

 private:
  SystemCommands& commands_;
  Registry& registry_;
  MappedFile file_;
  std::uint64_t id_;
  std::uint64_t entry_;  // offset in the segment
};

/// Throws Error (usage) if the array is mapped from a file.
void check_can_change(const DataRecord& record);

}  // namespace syncrun::detail

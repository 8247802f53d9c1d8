#pragma once

// Arrays in files. The master and each worker map the file themselves, and only read it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/arrays/mapped_file.hpp"
#include "master/calls/system_commands.hpp"
#include "master/records/records.hpp"
#include "master/records/registry.hpp"

namespace syncrun::detail::arrays {

struct FileElements;

}  // namespace syncrun::detail::arrays

namespace syncrun::detail::master::data {

/// A file that the master has mapped, and the entry in the segment by which workers find it. When it is destroyed, the
/// workers unmap the file.
class FileRecord {
 public:
  /// The workers that map the file: those of the master's node, or those of all nodes. On other nodes, they check that
  /// their file equals the master's.
  enum class Readers : std::uint8_t { this_node, all_nodes };

  /// Refers to the first two arguments as long as it lives. They belong to the session, which the Data keeps alive.
  /// Throws Error (system).
  FileRecord(calls::SystemCommands& commands, records::Registry& registry, arrays::FileElements elements,
             Readers readers);
  /// The same for a file of the first node, if each node has its own. `path` is that of all of them, and `parts`, by node,
  /// describes those of the others.
  FileRecord(calls::SystemCommands& commands, records::Registry& registry, arrays::FileElements elements,
             const std::string& path, std::vector<arrays::FilePartOfNode> parts);
  ~FileRecord();
  FileRecord(const FileRecord&) = delete;
  FileRecord& operator=(const FileRecord&) = delete;

  const arrays::MappedFile& file() const noexcept { return file_; }
  std::uint64_t entry() const noexcept { return entry_; }

 private:
  FileRecord(calls::SystemCommands& commands, records::Registry& registry, arrays::FileElements elements);
  arrays::FileEntry& make_entry(const std::string& name, std::span<const arrays::FilePartOfNode> parts);

  calls::SystemCommands& commands_;
  records::Registry& registry_;
  arrays::MappedFile file_;
  std::uint64_t id_;
  std::uint64_t entry_ = 0;  // offset in the segment
};

/// Throws Error (usage) if the array is mapped from a file.
void check_can_change(const records::DataRecord& record);

}  // namespace syncrun::detail::master::data

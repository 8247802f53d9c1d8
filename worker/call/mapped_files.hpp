#pragma once

// The files that this worker has mapped, and what happens if bytes are missing when a mapping is read.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "common/arrays/mapped_file.hpp"
#include "common/os/segment.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/node_place.hpp"

namespace syncrun::detail::worker::call {

/// Protects the mapping of a file that may be truncated, or whose disk may fail, at any time. In these cases, reading
/// the mapping raises the signal SIGBUS. The handler of this class then maps zeros in place of the missing bytes and
/// records that. It passes a SIGBUS from elsewhere on to the previous handler.
class FaultGuard {
 public:
  /// Protects the mapping from now on. Throws Error (usage) if too many mappings are protected already.
  explicit FaultGuard(const arrays::MappedFile& file);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  /// Whether bytes were missing. If so, values that were read may be zeros that the file never had.
  bool has_struck() const noexcept;

 private:
  int place_;  // in the table that the signal handler reads; -1 if the file has no mapping
};

class MappedFiles {
 public:
  explicit MappedFiles(const protocol::NodePlace& place = {}) : place_(place) {}
  /// Tells the master about the file of this node. Throws Error (system), or Error (usage) if the file has not the form that
  /// the program expects.
  void look(const os::Segment& segment, const protocol::LookPayload& command, int rank) const;
  /// Maps the file at the first use. On a node other than the master's, that is the file with the same path, or the node's
  /// own. Throws Error (system) if it cannot be mapped, was overwritten since, or is not the file that the master has mapped.
  const arrays::MappedFile& at(const arrays::FileEntry& entry);
  void forget(std::uint64_t id) noexcept { files_.erase(id); }
  /// Called after a body has read the file. Throws Error (system) if bytes were missing, or if the file was
  /// overwritten.
  void check(std::uint64_t id) const;

 private:
  struct Guarded {
    arrays::MappedFile file;
    FaultGuard guard{file};
  };
  std::unique_ptr<Guarded> map_part(const arrays::FileEntry& entry, const std::string& path) const;
  std::unique_ptr<Guarded> map_same(const arrays::FileEntry& entry, const std::string& name) const;

  protocol::NodePlace place_;  // of this worker
  std::unordered_map<std::uint64_t, std::unique_ptr<Guarded>> files_;
};

}  // namespace syncrun::detail::worker::call

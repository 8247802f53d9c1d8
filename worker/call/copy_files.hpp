#pragma once

// Moves rows between this rank's copies of shared variables and files that all nodes see. So the rows of a checkpoint do
// not travel to the master.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "common/os/shared_heap.hpp"
#include "common/protocol/command.hpp"
#include "worker/call/shared_variables.hpp"
#include "worker/devices/device_parts.hpp"

namespace syncrun::detail::arrays {

class FilePart;
struct Folder;

}  // namespace syncrun::detail::arrays

namespace syncrun::detail::worker::call {

class CopyFiles {
 public:
  /// Rows on their way to or from the memory of a GPU go through `arena`. All of them outlive this object.
  CopyFiles(const process::Attachment& attachment, devices::DeviceMemory& memory, os::SharedHeap& arena,
            VariableCopies& copies)
      : attachment_(attachment), memory_(memory), arena_(arena), copies_(copies) {}

  /// Throws Error (system), or Error (usage) if this node does not see the folder, or a file does not have the rows.
  void run(const protocol::FilesPayload& command);

 private:
  /// Rows that were read, as the copy will have them. They are not in the arena, which may be too small for two copies.
  struct Rows {
    std::unique_ptr<std::byte[]> values;
    std::size_t bytes;
  };

  std::string text(const protocol::TextPlace& place) const;
  void try_to_write(const protocol::FilesPayload& command) const;
  arrays::Folder open_folder_of(const protocol::FilesPayload& command) const;
  void write(const protocol::FilesPayload& command, std::span<const protocol::FilePiece> pieces);
  /// Calls `visit(at, bytes)` with the bytes of a piece of the copy in memory of the host, one part after the other.
  template <class Visit>
  void for_each_part_of(const protocol::FilePiece& piece, const protocol::VariableCopy& copy, Visit&& visit);
  void hash_for_others(const protocol::FilesPayload& command, std::uint64_t own);
  void read(const protocol::FilesPayload& command, const protocol::FilesSlot& slot,
            std::span<const protocol::FilePiece> pieces);
  void take(const protocol::FilesPayload& command, const protocol::FilesSlot& slot);
  std::size_t bytes_of(const protocol::FilesPayload& command, const protocol::FilesSlot& slot) const;
  std::size_t bytes_on_node(const protocol::FilesPayload& command) const;

  const process::Attachment& attachment_;
  devices::DeviceMemory& memory_;
  os::SharedHeap& arena_;
  VariableCopies& copies_;
  std::unordered_map<std::uint64_t, Rows> read_;  // by FilesPayload::reading
};

}  // namespace syncrun::detail::worker::call

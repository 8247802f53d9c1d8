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
#include "worker/devices/device.hpp"

namespace syncrun::detail {

class FilePart;
struct Folder;

class CopyFiles {
 public:
  /// Rows on their way to or from the memory of a GPU go through `arena`. All of them outlive this object.
  CopyFiles(const Attachment& attachment, WorkerDevice& device, SharedHeap& arena, VariableCopies& copies)
      : attachment_(attachment), device_(device), arena_(arena), copies_(copies) {}

  /// Throws Error (system), or Error (usage) if this node does not see the folder, or a file does not have the rows.
  void run(const FilesPayload& command);

 private:
  /// Rows that were read, as the copy will have them. They are not in the arena, which may be too small for two copies.
  struct Rows {
    std::unique_ptr<std::byte[]> values;
    std::size_t bytes;
  };

  std::string text(const TextPlace& place) const;
  Folder open_folder_of(const FilesPayload& command) const;
  void write(const FilesPayload& command, std::span<const FilePiece> pieces);
  void write_elements(FilePart& file, const FilePiece& piece, const std::byte* elements);
  void read(const FilesPayload& command, const FilesSlot& slot, std::span<const FilePiece> pieces);
  void take(const FilesPayload& command, const FilesSlot& slot);
  std::size_t bytes_of(const FilesPayload& command, const FilesSlot& slot) const;
  std::size_t bytes_on_node(const FilesPayload& command) const;

  const Attachment& attachment_;
  WorkerDevice& device_;
  SharedHeap& arena_;
  VariableCopies& copies_;
  std::unordered_map<std::uint64_t, Rows> read_;  // by FilesPayload::reading
};

}  // namespace syncrun::detail

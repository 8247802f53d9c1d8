#include "worker/call/copy_files.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/arrays/array_file.hpp"
#include "common/arrays/content_hash.hpp"
#include "common/arrays/extents.hpp"
#include "common/arrays/shared_folder.hpp"
#include "common/os/memory_limit.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::worker::call {

namespace {

/// How long a folder that the master has made may take to appear on another node.
constexpr std::chrono::milliseconds kFolderLimit{3000};

/// Elements in the memory of a GPU go through memory of the host in parts of this size.
constexpr std::size_t kPartBytes = std::size_t{8} << 20U;

/// Memory of the arena, which is freed at the end of this object's life.
class ArenaLoan {
 public:
  ArenaLoan(os::SharedHeap& arena, std::size_t bytes)
      : arena_(arena), offset_(arena.allocate(bytes, os::SharedHeap::Contents::any, "rows between a file and a GPU")) {}
  ~ArenaLoan() { arena_.free(offset_, os::SharedHeap::Giveback::later); }
  ArenaLoan(const ArenaLoan&) = delete;
  ArenaLoan& operator=(const ArenaLoan&) = delete;
  std::uint64_t offset() const noexcept { return offset_; }

 private:
  os::SharedHeap& arena_;
  std::uint64_t offset_;
};

/// Calls `visit(offset, at, part)` for each part of so many bytes. `offset` is that of memory for the part, and `at` the
/// number of bytes before it.
template <class Visit>
void for_each_part(os::SharedHeap& arena, std::size_t bytes, Visit&& visit) {
  const ArenaLoan memory(arena, std::min(bytes, kPartBytes));
  for (std::size_t at = 0; at < bytes; at += kPartBytes) visit(memory.offset(), at, std::min(bytes - at, kPartBytes));
}

}  // namespace

void CopyFiles::run(const protocol::FilesPayload& command) {
  if (command.action == protocol::FilesAction::drop) {
    read_.erase(command.reading);  // the command has no slots
    return;
  }
  if (command.action == protocol::FilesAction::see) return try_to_write(command);
  const auto& slot = attachment_.segment.at<const protocol::FilesSlot>(command.slots)[attachment_.rank];
  const std::span pieces(attachment_.segment.at<const protocol::FilePiece>(slot.pieces), slot.pieces_count);
  switch (command.action) {
    case protocol::FilesAction::write: return write(command, pieces);
    case protocol::FilesAction::read: return read(command, slot, pieces);
    case protocol::FilesAction::take: return take(command, slot);
    case protocol::FilesAction::see:
    case protocol::FilesAction::drop: break;
  }
}

std::string CopyFiles::text(const protocol::TextPlace& place) const {
  return {attachment_.segment.at<const char>(place.offset), place.bytes};
}

arrays::Folder CopyFiles::open_folder_of(const protocol::FilesPayload& command) const {
  return arrays::open_shared({text(command.folder), text(command.id)}, kFolderLimit);
}

/// Another node may have the folder for reading only.
void CopyFiles::try_to_write(const protocol::FilesPayload& command) const {
  const arrays::Folder folder = open_folder_of(command);
  const std::string name = "see@" + std::to_string(attachment_.rank);  // no array has this name
  try {
    const arrays::FilePart file(folder, name);
  } catch (const Error& error) {
    text::throw_usage(std::string("this node cannot write to the folder: ") + error.what());
  }
  arrays::remove_file(folder, name);
}

// ---- writing --------------------------------------------------------------------------------------------------

void CopyFiles::write(const protocol::FilesPayload& command, std::span<const protocol::FilePiece> pieces) {
  const arrays::Folder folder = open_folder_of(command);
  const protocol::VariableCopy& copy = attachment_.own_copy(command.variable);
  arrays::ContentHash hash;
  for (const protocol::FilePiece& piece : pieces) {
    arrays::FilePart file(folder, text(piece.name));
    if (piece.at == 0) {
      const std::string front = text(piece.front);
      file.write(0, std::as_bytes(std::span(front)));
    }
    for_each_part_of(piece, copy, [&](std::uint64_t at, std::span<const std::byte> bytes) {
      file.write(piece.front.bytes + piece.at + at, bytes);
      if (command.hashes != 0) hash.add(bytes);
    });
    file.sync();
  }
  if (command.hashes == 0) return;
  attachment_.segment.at<std::uint64_t>(command.hashes)[attachment_.rank] = hash.value();
  if (attachment_.rank == 0) hash_for_others(command, hash.value());
}

template <class Visit>
void CopyFiles::for_each_part_of(const protocol::FilePiece& piece, const protocol::VariableCopy& copy, Visit&& visit) {
  if (piece.copy_at + piece.bytes > copy.capacity_bytes)
    text::throw_usage("a shared variable's copy is smaller than what was asked of it");
  const auto* const elements = static_cast<const std::byte*>(memory_.at(copy.place)) + piece.copy_at;
  if (attachment_.segment.contains(elements)) return visit(0, std::span(elements, piece.bytes));
  for_each_part(arena_, piece.bytes, [&](std::uint64_t offset, std::size_t at, std::size_t bytes) {
    std::byte* const host = attachment_.segment.at(offset);
    memory_.copy_out(host, elements + at, bytes);
    memory_.finish();
    visit(at, std::span<const std::byte>(host, bytes));
  });
}

/// The master compares the hashes with those of the ranks that write.
void CopyFiles::hash_for_others(const protocol::FilesPayload& command, std::uint64_t own) {
  const protocol::VariableCopy& copy = attachment_.own_copy(command.variable);
  const int world_size = attachment_.control.world_size();
  const auto* const slots = attachment_.segment.at<const protocol::FilesSlot>(command.slots);
  auto* const hashes = attachment_.segment.at<std::uint64_t>(command.hashes) + world_size;
  hashes[0] = own;
  for (int rank = 1; rank < world_size; ++rank) {
    arrays::ContentHash hash;
    const std::span pieces(attachment_.segment.at<const protocol::FilePiece>(slots[rank].pieces),
                           slots[rank].pieces_count);
    for (const protocol::FilePiece& piece : pieces)
      for_each_part_of(piece, copy, [&](std::uint64_t, std::span<const std::byte> bytes) { hash.add(bytes); });
    hashes[rank] = hash.value();
  }
}

// ---- reading --------------------------------------------------------------------------------------------------

std::size_t CopyFiles::bytes_of(const protocol::FilesPayload& command, const protocol::FilesSlot& slot) const {
  const auto& entry = *attachment_.segment.at<const protocol::VariableEntry>(command.variable);
  return arrays::elements_in({slot.extents.data(), entry.dimensions}) * size_of(entry.dtype);
}

/// The ranks of a node read at the same time, and do not see each other's memory before it has been written.
std::size_t CopyFiles::bytes_on_node(const protocol::FilesPayload& command) const {
  const protocol::NodePlace& here = attachment_.place;
  const auto* const slots = attachment_.segment.at<const protocol::FilesSlot>(command.slots);
  std::size_t bytes = 0;
  for (int rank = here.first_rank; rank < here.end_rank(); ++rank) bytes += bytes_of(command, slots[rank]);
  return bytes;
}

void CopyFiles::read(const protocol::FilesPayload& command, const protocol::FilesSlot& slot,
                     std::span<const protocol::FilePiece> pieces) {
  const arrays::Folder folder = open_folder_of(command);
  auto rows = read_.find(command.reading);
  if (rows == read_.end()) {
    const std::size_t bytes = bytes_of(command, slot);
    os::check_memory_available(bytes_on_node(command), "the rows of a checkpoint on the ranks of this node", "memory");
    rows = read_.emplace(command.reading, Rows{std::make_unique_for_overwrite<std::byte[]>(bytes), bytes}).first;
  }
  for (const protocol::FilePiece& piece : pieces) {
    if (piece.copy_at + piece.bytes > rows->second.bytes) text::throw_usage("the rows of a file do not fit the copy");
    const arrays::ArrayFile file(folder, text(piece.name));
    file.read_part(piece.at, piece.bytes, rows->second.values.get() + piece.copy_at);
  }
}

void CopyFiles::take(const protocol::FilesPayload& command, const protocol::FilesSlot& slot) {
  const std::size_t bytes = bytes_of(command, slot);
  const auto rows = read_.find(command.reading);
  const std::size_t there = rows == read_.end() ? 0 : rows->second.bytes;
  if (there != bytes) {
    throw Error(ErrorKind::system, "rank " + std::to_string(attachment_.rank) + " has read " + std::to_string(there) +
                                       " of the " + std::to_string(bytes) +
                                       " bytes of its copy, perhaps because its worker was replaced: load the "
                                       "checkpoint again");
  }
  auto* const to = static_cast<std::byte*>(copies_.reshape(command.variable, slot.extents));
  if (bytes == 0) return;
  const std::byte* const values = rows->second.values.get();
  if (attachment_.segment.contains(to)) {
    std::memcpy(to, values, bytes);
  } else {
    for_each_part(arena_, bytes, [&](std::uint64_t offset, std::size_t at, std::size_t part) {
      std::byte* const host = attachment_.segment.at(offset);
      std::memcpy(host, values + at, part);
      memory_.copy_in(to + at, host, part);
      memory_.finish();
    });
  }
  read_.erase(rows);
}

}  // namespace syncrun::detail::worker::call

#include "worker/devices/staging.hpp"

#include <cerrno>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::detail::worker::devices {

void Staging::begin_command(std::uint64_t command) {
  if (std::exchange(is_used_, false)) {
    lanes_.mark(Lane::work);
    must_follow_ = true;
  }
  if (std::exchange(is_arriving_, false)) lanes_.follow(Lane::work);
  for (void* memory : outgrown_) lanes_.release(memory);  // both lanes now come after the last use
  outgrown_.clear();
  own_ = 1 - own_;
  command_ = command;
}

void Staging::begin_ahead(std::uint64_t command) {
  ahead_ = command;
  if (std::exchange(must_follow_, false)) lanes_.follow(Lane::ahead);
}

void Staging::end_ahead() {
  lanes_.start(Lane::ahead);
  lanes_.mark(Lane::ahead);
  is_arriving_ = true;
  ahead_ = 0;
}

void Staging::abandon() noexcept {
  lanes_.forget_requests();
  lanes_.await_ahead();
  ahead_ = 0;
  for (Set& set : sets_) {
    for (Buffer& buffer : set) buffer.command = 0;
  }
}

void* Staging::bring(std::size_t argument, const SharedRows& from, const RowsWanted& wanted) {
  Buffer& buffer = set()[argument];
  if (!is_ahead()) {
    is_used_ = true;
    // Only the first slice of the call was copied ahead.
    const bool is_there = std::exchange(buffer.command, 0) == command_ && buffer.array == from.array &&
                          buffer.row_bytes == from.row_bytes && buffer.wanted == wanted;
    if (is_there) {
      buffer.used_during = command_;
      return buffer.block.memory;
    }
  }
  const std::size_t bytes = from.row_bytes * static_cast<std::size_t>(wanted.rows);
  void* const to = memory_of(buffer, bytes);
  if (is_ahead()) {
    buffer.command = ahead_;
    buffer.array = from.array;
    buffer.row_bytes = from.row_bytes;
    buffer.wanted = wanted;
  }
  if (bytes != 0) lanes_.bring(to, from, wanted, is_ahead() ? Lane::ahead : Lane::work);
  return to;
}

void* Staging::gather_local(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                            std::span<const std::int64_t> indices) {
  is_used_ = true;
  void* const to = memory_of(set()[argument], row_bytes * indices.size());
  if (!indices.empty()) lanes_.gather_local(to, array, row_bytes, indices.data(), std::ssize(indices));
  return to;
}

/// A block that a request of the current call uses, or a copy ahead beside it, is not released: the other lane could take
/// it. For earlier requests, the lanes are in order.
void* Staging::memory_of(Buffer& buffer, std::size_t bytes) {
  StagingLanes::Block& block = buffer.block;
  const bool is_in_use = std::exchange(buffer.used_during, command_) == command_;
  if (bytes <= block.bytes && block.memory != nullptr) return block.memory;
  if (block.memory != nullptr) {
    if (is_in_use) outgrown_.push_back(block.memory);
    else lanes_.release(block.memory);
  }
  block = {};
  block = allocate(bytes);  // the whole block, so that the address changes rarely
  return block.memory;
}

/// If there is too little memory for two sets of buffers, frees the other set. The calls that read it came before the
/// current one.
StagingLanes::Block Staging::allocate(std::size_t bytes) {
  try {
    return lanes_.allocate(bytes, StagingLanes::Effort::usual);
  } catch (const Error& error) {
    if (is_ahead() || error.native_code() != ENOMEM) throw;
  }
  lanes_.await_ahead();
  for (Buffer& other : sets_[1 - own_]) {
    if (other.block.memory != nullptr) lanes_.release(other.block.memory);
    other = {};
  }
  return lanes_.allocate(bytes, StagingLanes::Effort::all);
}

}  // namespace syncrun::detail::worker::devices

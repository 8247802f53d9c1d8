#pragma once

// This rank's copies of the session's shared variables, and what the master can request for them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "common/protocol/command.hpp"
#include "common/protocol/variable_entry.hpp"
#include "worker/devices/communicators.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail {

class VariableCopies {
 public:
  /// `before_release` is called before the memory of a copy is freed, because recorded work may refer to it. It must not
  /// end recorded work that is running.
  VariableCopies(const Attachment& attachment, WorkerDevice& device, Communicators& comms,
                 std::function<void()> before_release)
      : attachment_(attachment), device_(device), comms_(comms), before_release_(std::move(before_release)) {}

  /// Runs a collective that the master calls on variables. Called by all of `ranks`, the ranks of the command.
  void run_collective(const CommandHead& head);
  /// Copies values between the master and the copies, or gives copies a new shape.
  void run_transfer(const TransferPayload& command);
  /// Copies a variable from another rank. The values there are complete, and do not change in the meantime.
  void run_move(const Command& command);
  /// Starts such a copy before its command runs, if the device can do that and the copy has enough memory. No work of
  /// this rank may use the variable.
  bool start_move_ahead(const Command& command);
  /// Gives the copy a shape, and memory for it. Returns this memory, which the caller fills.
  void* reshape(std::uint64_t variable, const std::array<std::int64_t, kMaxDimensions>& extents);
  VariableCopy& own_copy(std::uint64_t variable) const noexcept {
    return attachment_.segment.at<VariableEntry>(variable)->copies()[attachment_.rank];
  }
  /// The program no longer uses these variables.
  void free(const FreePayload& command) noexcept;
  /// An output of a call stays on the device: its memory becomes this rank's copy of a variable.
  void adopt(std::uint64_t variable, const std::array<std::int64_t, kMaxDimensions>& extents, OutputBuffer buffer);
  /// Frees copies that the master no longer needs on this rank, until they have this many bytes. `current` is the
  /// command that this rank runs. Returns how many bytes it has freed.
  std::size_t drop_spare(std::size_t bytes, std::uint64_t current) noexcept;

 private:
  void take_arrived(const Command& command);
  void run_part(TransferDirection direction, const TransferSlot& part);
  void make_room(std::uint64_t variable, std::size_t bytes);
  void take_memory(std::uint64_t variable, void* memory, std::size_t bytes);
  void release(std::uint64_t variable) noexcept;
  void release_memory(std::uint64_t variable) noexcept;

  const Attachment& attachment_;
  WorkerDevice& device_;
  Communicators& comms_;
  std::function<void()> before_release_;
  std::set<std::uint64_t> held_;  // the variables whose copy has memory, by the offset of the VariableEntry
};

}  // namespace syncrun::detail

#pragma once

// This rank's copies of the session's shared variables, and what the master can request for them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "common/arrays/extents.hpp"
#include "common/protocol/command.hpp"
#include "common/protocol/variable_entry.hpp"
#include "worker/devices/communicators.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::call {

/// The size of a copy with these extents.
inline std::size_t bytes_of(const protocol::VariableEntry& entry, const Extents& extents) noexcept {
  return arrays::elements_in({extents.data(), entry.dimensions}) * size_of(entry.dtype);
}

class VariableCopies {
 public:
  /// `before_release` is called before the memory of a copy is freed, because recorded work may refer to it. It must not
  /// end recorded work that is running.
  VariableCopies(const process::Attachment& attachment, const devices::DeviceParts& device,
                 devices::Communicators& comms, std::function<void()> before_release)
      : attachment_(attachment),
        memory_(device.memory),
        peers_(device.peers),
        comms_(comms),
        before_release_(std::move(before_release)) {}

  /// Runs a collective that the master calls on variables. Called by all of `ranks`, the ranks of the command.
  void run_collective(const protocol::CommandHead& head);
  /// Copies values between the master and the copies, or gives copies a new shape.
  void run_transfer(const protocol::TransferPayload& command);
  /// Copies a variable from another rank. The values there are complete, and do not change in the meantime.
  void run_move(const protocol::Command& command);
  /// Starts such a copy before its command runs, if the device can do that and the copy has enough memory. No work of
  /// this rank may use the variable.
  bool start_move_ahead(const protocol::Command& command);
  /// Gives the copy a shape, and memory for it. Returns this memory, which the caller fills.
  void* reshape(std::uint64_t variable, const std::array<std::int64_t, kMaxDimensions>& extents);
  /// The program no longer uses these variables.
  void free(const protocol::FreePayload& command) noexcept;
  /// An output of a call stays on the device: its memory becomes this rank's copy of a variable.
  void adopt(std::uint64_t variable, const std::array<std::int64_t, kMaxDimensions>& extents, OutputBuffer buffer);
  /// Frees copies that the master no longer needs on this rank, until they have this many bytes. `current` is the
  /// command that this rank runs. Returns how many bytes it has freed.
  std::size_t drop_spare(std::size_t bytes, std::uint64_t current) noexcept;

 private:
  void take_arrived(const protocol::Command& command);
  void run_part(protocol::TransferDirection direction, const protocol::TransferSlot& part);
  void make_room(std::uint64_t variable, std::size_t bytes);
  void take_memory(std::uint64_t variable, void* memory, std::size_t bytes);
  void release(std::uint64_t variable) noexcept;
  void release_memory(std::uint64_t variable) noexcept;

  const process::Attachment& attachment_;
  devices::DeviceMemory& memory_;
  devices::PeerAccess& peers_;
  devices::Communicators& comms_;
  std::function<void()> before_release_;
  std::set<std::uint64_t> held_;  // the variables whose copy has memory, by the offset of the VariableEntry
};

}  // namespace syncrun::detail::worker::call

#pragma once

// A new worker takes the rank of one that was lost. This is what each node does in its control block before the new worker
// starts.

#include <cstdint>

#include "common/protocol/control_block.hpp"

namespace syncrun::detail::master::pool {

/// A new worker for the rank of a lost one. Every survivor is done with all commands that were published so far, and the new
/// worker begins with the next one.
struct Successor {
  std::int32_t rank = 0;
  std::uint64_t last = 0;      // the last command that was published
  std::uint64_t received = 0;  // how many commands the rank has got so far
};

/// A dead rank belonged to the communicators that were made up to command `last`. Lets the workers of this node make new
/// ones, and share their memory with their peers again.
void forget_peers(const protocol::ControlBlock& control, std::uint64_t last) noexcept;

/// Prepares the slot of a rank of this node for its next worker, as if the rank were done with all commands so far. Nobody
/// watches the sign of life of the lost worker any more.
void prepare_slot(const protocol::ControlBlock& control, const Successor& successor);

}  // namespace syncrun::detail::master::pool

#pragma once

// The way of a leader's requests to the process that carries messages on its node (see NodeRequest).

#include <cstdint>
#include <span>

#include "worker/comm/meetings.hpp"

namespace syncrun::detail::worker::comm {

/// Only the rank that leads its node in a command uses it.
class NodeLink {
 public:
  NodeLink(const process::Attachment& attachment, Meetings& meetings) noexcept
      : attachment_(attachment), meetings_(meetings) {}

  /// From here on, exchanges belong to a new command.
  void begin() noexcept { step_ = 0; }
  /// Waits until the carrier no longer reads what an earlier request has named. That request may have been given up.
  void await_taken(const process::WaitLimits& limits);
  /// Begins to send a block to each other node of the command, and to receive a block from each of them. `table` is the
  /// offset of one NodeBlock for each node. The exchange before is complete. Throws what interrupts the wait for an earlier
  /// request.
  void begin_exchange(const protocol::Command& command, std::uint64_t table, const process::WaitLimits& limits);
  /// Waits until a block has come from each other node. Throws Error (usage) if another node takes no part in further
  /// exchanges, and what interrupts the wait.
  void end_exchange(const process::WaitLimits& limits);

 private:
  protocol::NodeRequest& request() const noexcept { return attachment_.slot().exchange; }

  const process::Attachment& attachment_;
  Meetings& meetings_;
  std::uint64_t step_ = 0;
};

}  // namespace syncrun::detail::worker::comm

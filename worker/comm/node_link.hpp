#pragma once

// How a leader exchanges blocks with the leaders of other nodes: over connections of its own (LeaderLinks), or by requests
// to the process that carries messages on its node (NodeRequest). The command says which.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/comm/leader_links.hpp"
#include "worker/comm/meetings.hpp"

namespace syncrun::detail::worker::comm {

/// Only the rank that leads its node in a command uses it.
class NodeLink final : private LeaderLinks::Caller {
 public:
  NodeLink(const process::Attachment& attachment, Meetings& meetings) noexcept
      : attachment_(attachment), meetings_(meetings), policy_(meetings.policy()) {}

  /// From here on, exchanges belong to a new command. `links` are those over which its blocks go, or null. With links, each
  /// node has one rank of the command.
  void begin(LeaderLinks* links, const protocol::RankSet& ranks);
  /// Waits until nothing reads any more what an earlier request has named. That request may have been given up.
  void await_taken(const process::WaitLimits& limits);
  /// Begins to send a block to each other node of the command, and to receive a block from each of them. `table` is the
  /// offset of one NodeBlock for each node. The exchange before is complete. Throws what interrupts the wait for an earlier
  /// request.
  void begin_exchange(const protocol::Command& command, std::uint64_t table, const process::WaitLimits& limits);
  /// Waits until a block has come from each other node. Throws Error (usage) if another node takes no part in further
  /// exchanges, Error (system) if a connection has broken, and what interrupts the wait.
  void end_exchange(const process::WaitLimits& limits);

 private:
  protocol::NodeRequest& request() const noexcept { return attachment_.slot().exchange; }
  void ask(std::uint64_t command, std::uint64_t step, protocol::NodeRequest::Kind kind);
  void check_answer(const process::WaitLimits& limits) const;
  void note_long_wait(const std::vector<bool>& is_missing) override;
  bool is_over() const override;

  const process::Attachment& attachment_;
  Meetings& meetings_;
  os::WaitPolicy policy_;
  std::uint64_t step_ = 0;
  LeaderLinks* links_ = nullptr;
  std::size_t nodes_ = 0;         // of the command, if there are links
  std::uint64_t table_ = 0;       // of the exchange
  std::uint64_t watch_ = 0;       // the last request to watch this exchange, or 0
  std::vector<bool> is_watched_;  // what this request says, by node
};

}  // namespace syncrun::detail::worker::comm

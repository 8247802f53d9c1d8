#pragma once

// What an agent tells the master about a worker of its node: how far its start is, that it was lost, how it ended. And what
// the master tells the agents about lost workers that are replaced.

#include <string>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "master/nodes/messages.hpp"
#include "master/pool/successor.hpp"
#include "master/process/child_end.hpp"

namespace syncrun::detail::master::nodes {

/// How far the start of a worker is. The agent sends it when it changes.
void put_rank_state(MessageWriter& to, int rank, const protocol::WorkerSlot& slot);
/// Writes it into the slot of the rank in the master's control block. Returns the rank.
int take_rank_state(MessageReader& from, const protocol::ControlBlock& control);

/// Where a busy worker is, how far it has come in collectives, and what it has done so far. For messages about deadlines, and
/// for `syncrun top`.
struct RankProgress {
  int rank;
  int stop_signal;  ///< The signal that has stopped the worker. 0: none.
  int tracer;       ///< The process that debugs it. 0: none.
};
void put_progress(MessageWriter& to, const RankProgress& progress, const protocol::WorkerSlot& slot);
/// Writes all but the signal and the tracer into the slot of the rank.
RankProgress take_progress(MessageReader& from, const protocol::ControlBlock& control);

/// Where the worker was when it was lost.
void put_rank_lost(MessageWriter& to, int rank, const protocol::WorkerSlot& slot);
int take_rank_lost(MessageReader& from, const protocol::ControlBlock& control);

/// A worker of another node was lost. The master tells the nodes that do not know it.
void put_peer_lost(MessageWriter& to, int rank);
int take_peer_lost(MessageReader& from, const protocol::ControlBlock& control);

/// The ranks that get new workers.
void put_successors(MessageWriter& to, const std::vector<pool::Successor>& successors);
std::vector<pool::Successor> take_successors(MessageReader& from, const protocol::ControlBlock& control);

struct RankEnd {
  process::ChildEnd end;
  std::vector<std::string> last_stderr;
};
void put_rank_end(MessageWriter& to, int rank, const protocol::WorkerSlot& slot, const RankEnd& end);
/// Writes the reason that the worker has given into its slot. Returns the rank.
int take_rank_end(MessageReader& from, const protocol::ControlBlock& control, RankEnd& end);

}  // namespace syncrun::detail::master::nodes

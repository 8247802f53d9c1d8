#pragma once

// What an agent tells the master about a worker of its node: how far its start is, that it was lost, how it ended. And what
// the master tells the agents about lost workers that are replaced.

#include <string>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "launcher/nodes/messages.hpp"
#include "launcher/pool/successor.hpp"
#include "launcher/process/child_end.hpp"

namespace syncrun::detail {

/// How far the start of a worker is. The agent sends it when it changes.
void put_rank_state(MessageWriter& to, int rank, const WorkerSlot& slot);
/// Writes it into the slot of the rank in the master's control block. Returns the rank.
int take_rank_state(MessageReader& from, const ControlBlock& control);

/// Where a busy worker is, how far it has come in collectives, and the signal that has stopped it (0: none). For messages
/// about deadlines.
void put_progress(MessageWriter& to, int rank, const WorkerSlot& slot, int stop_signal);
struct RankProgress {
  int rank;
  int stop_signal;
};
/// Writes the phase and the step of collectives into the slot of the rank.
RankProgress take_progress(MessageReader& from, const ControlBlock& control);

/// Where the worker was when it was lost.
void put_rank_lost(MessageWriter& to, int rank, const WorkerSlot& slot);
int take_rank_lost(MessageReader& from, const ControlBlock& control);

/// A worker of another node was lost. The master tells the nodes that do not know it.
void put_peer_lost(MessageWriter& to, int rank);
int take_peer_lost(MessageReader& from, const ControlBlock& control);

/// The ranks that get new workers.
void put_successors(MessageWriter& to, const std::vector<Successor>& successors);
std::vector<Successor> take_successors(MessageReader& from, const ControlBlock& control);

struct RankEnd {
  ChildEnd end;
  std::vector<std::string> last_stderr;
};
void put_rank_end(MessageWriter& to, int rank, const WorkerSlot& slot, const RankEnd& end);
/// Writes the reason that the worker has given into its slot. Returns the rank.
int take_rank_end(MessageReader& from, const ControlBlock& control, RankEnd& end);

}  // namespace syncrun::detail

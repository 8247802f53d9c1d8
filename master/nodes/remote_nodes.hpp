#pragma once

// The other nodes of a session, as the master sees them. The master's control block has the slots of all ranks. For the
// ranks of other nodes, this class plays the part of the workers in it: it sends commands to their agents, and writes
// what the agents report. So the rest of the master reads the outcomes of all ranks in the same way.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/os/heap_log.hpp"
#include "common/os/shared_heap.hpp"
#include "common/protocol/control_block.hpp"
#include "master/nodes/mailbox.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/node_exchange.hpp"
#include "master/nodes/node_moves.hpp"
#include "master/nodes/relay.hpp"
#include "master/nodes/remote_timelines.hpp"
#include "master/nodes/row_mirror.hpp"

namespace syncrun::detail::master::nodes {

class RemoteNodes {
 public:
  struct Memory {
    const os::Segment& segment;
    os::SharedHeap& inbound;  // for arrays that agents report; only take_done() uses it
  };
  /// `places` are those of all nodes; the first is the master's. `exchange` and `moves` get the commands; they may be null
  /// in tests. `root` sends commands along the tree of nodes; if it is null, there is no tree. Refers to them and the
  /// mailbox as long as it lives.
  RemoteNodes(Mailbox& mailbox, protocol::ControlBlock control, const Memory& memory,
              std::vector<protocol::NodePlace> places, NodeExchange* exchange = nullptr, NodeMoves* moves = nullptr,
              RelayRoot* root = nullptr);

  /// The changes of the master's heap. The heap notes them there (SharedHeap::note_changes).
  os::HeapLog& changes() noexcept { return changes_; }

  /// Sends a command that was published, with all changes of the heap so far, to the nodes of its ranks. Called by the
  /// thread that publishes commands. Throws Error (system).
  void publish(std::uint64_t id, std::size_t slot);
  /// A command on which this one depends has failed (Command::spoiled). Tells the nodes of its ranks.
  void spoil(std::uint64_t id, std::size_t slot);
  /// Sends each other node a message of this kind: all changes of the heap that the node does not know, and then `rest`.
  /// Called by the thread that publishes commands. Throws Error (system).
  void tell_after_changes(MessageKind kind, std::span<const std::byte> rest);
  /// Handles a message of the kind done. One thread at a time, and it may be another one than the thread that publishes.
  /// Throws Error (system).
  void take_done(MessageReader& message);
  /// Takes what Agent::put_timeline has added to a message. Called by the thread that takes messages.
  void take_timeline(MessageReader& from, int rank) { timelines_.take(from, rank); }

 private:
  struct Node {
    protocol::NodePlace place;
    std::uint64_t told = 0;  // the number of the first change of the heap that it does not know
    RowMirror rows;          // that it has
  };
  void check_dependencies(const Node& node, const protocol::Command& command) const;
  void publish_to(Node& node, std::size_t slot);
  void publish_along_tree(std::size_t slot);
  void note_changes(Node& node);
  void shorten_changes(const protocol::RankSet& ranks);
  std::vector<SegmentRange> rows_for(Node& node, const protocol::Command& command);
  void put_consumed(MessageWriter& to, const Node& node, const protocol::Command& command) const;
  void send_bulk(const Node& node, std::span<const SegmentRange> rows);
  template <class Visit>
  void for_each_node_of(const protocol::RankSet& ranks, Visit&& visit);
  void take_rank_done(MessageReader& from, int rank);
  protocol::Command& reported_command(int rank, std::uint64_t id, std::size_t slot) const;
  void free_arrays(std::vector<std::uint64_t>& arrays) noexcept;
  static void fail(protocol::Outbox& outbox, const Error& why) noexcept;
  void forget_changes() noexcept;
  /// The arrays that came with the last report in this place of the rank's inbox.
  std::vector<std::uint64_t>& arrays_at(int rank, std::size_t place) {
    return arrays_[static_cast<std::size_t>(rank) * protocol::kInboxSize + place];
  }

  Mailbox& mailbox_;
  protocol::ControlBlock control_;
  Memory memory_;
  NodeExchange* exchange_;
  NodeMoves* moves_;
  RelayRoot* root_;
  os::HeapLog changes_;
  std::uint64_t published_ = 0;  // the end of the changes when the last command was published
  TimelineReceiver timelines_;
  std::vector<Node> others_;  // node n at n - 1
  std::vector<std::vector<std::uint64_t>> arrays_;
};

}  // namespace syncrun::detail::master::nodes

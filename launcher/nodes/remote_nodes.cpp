#include "launcher/nodes/remote_nodes.hpp"

#include <algorithm>
#include <string>

#include "common/text/errors.hpp"
#include "launcher/nodes/command_message.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

void throw_needs_one_node(const std::string& what, std::size_t nodes) {
  throw_usage(what + " does not work in a session on several nodes yet (this one has " + std::to_string(nodes) +
              "): use one node");
}

RemoteNodes::RemoteNodes(Mailbox& mailbox, ControlBlock control, const Memory& memory, std::vector<NodePlace> places,
                         NodeExchange* exchange, NodeMoves* moves)
    : mailbox_(mailbox),
      control_(control),
      memory_(memory),
      exchange_(exchange),
      moves_(moves),
      timelines_(control, memory.segment),
      arrays_(static_cast<std::size_t>(control.world_size()) * kInboxSize) {
  for (std::size_t node = 1; node < places.size(); ++node)
    nodes_.push_back({.place = places[node], .told = 0, .rows = {}});
}

template <class Visit>
void RemoteNodes::for_each_node_of(const RankSet& ranks, Visit&& visit) {
  for (Node& node : nodes_) {
    const RankSet::Part here = node.place.ranks_of(ranks);
    if (here.begin() != here.end()) visit(node);
  }
}

void RemoteNodes::publish(std::uint64_t, std::size_t slot) {
  const Command& command = control_.command_in(slot);
  if (exchange_ != nullptr) exchange_->add(slot);
  timelines_.note_sent(command);
  if (moves_ != nullptr && command.kind == CommandKind::move) {
    moves_->add(slot);
    moves_->order(slot);
  }
  for_each_node_of(command.ranks, [&](Node& node) { publish_to(node, slot); });
  forget_changes();
}

/// A node does not know whether commands of other nodes have failed. Only the source of a move asks for that (NodeMoves).
/// The rest of the master waits before it publishes anything else that would need it.
void RemoteNodes::check_dependencies(const Node& node, const Command& command) const {
  const auto* const move = std::get_if<MovePayload>(&command.payload);
  const auto* const first = memory_.segment.at<const Dependency>(command.dependencies);
  for (const Dependency& earlier : std::span(first, command.dependencies_count)) {
    const bool waits = earlier.rank != Dependency::kOwnRank && !node.place.has(earlier.rank);
    const bool is_source = move != nullptr && move->from == earlier.rank;
    if (!waits || is_source || earlier.slot == Dependency::kOnlyReads) continue;
    throw Error(ErrorKind::system, "a command on node " + std::to_string(node.place.node) + " depends on one of rank " +
                                       std::to_string(earlier.rank) + " on another node");
  }
}

void RemoteNodes::publish_to(Node& node, std::size_t slot) {
  const Command& command = control_.command_in(slot);
  if (command.dependencies_count != 0) check_dependencies(node, command);
  changes_.for_each(node.told, [&](const HeapChange& change) { node.rows.note(change); });
  MessageWriter message(MessageKind::command);
  put_heap_changes(message, memory_.segment, changes_, node.told);
  node.told = changes_.end();
  const std::vector<SegmentRange> rows = node.rows.take_missing(memory_.segment, command, node.place);
  put_rows(message, memory_.segment, rows);
  put_command(message, control_, memory_.segment, slot, node.place);
  for (const int rank : node.place.ranks_of(command.ranks))
    message.put(control_.worker(rank).consumed.load(std::memory_order_relaxed));
  mailbox_.send(node.place.node, message.take());
  // The rows stay as they are until the command is done, and the agent needs them before that.
  for (const SegmentRange& range : rows) {
    if (is_bulk(range)) mailbox_.send_bulk(node.place.node, {memory_.segment.at(range.begin), range.count()});
  }
}

/// A node that gets no commands still has to learn of all changes, with its next command.
void RemoteNodes::forget_changes() noexcept {
  std::uint64_t known = changes_.end();
  for (const Node& node : nodes_) known = std::min(known, node.told);
  changes_.forget(known);
}

void RemoteNodes::spoil(std::uint64_t id, std::size_t slot) {
  for_each_node_of(control_.command_in(slot).ranks, [&](const Node& node) {
    MessageWriter message(MessageKind::spoil);
    message.put(slot);
    message.put(id);
    mailbox_.send(node.place.node, message.take());
  });
}

void RemoteNodes::take_done(MessageReader& message) {
  while (!message.is_at_end()) take_rank_done(message, message.get<std::int32_t>());
  control_.header().to_master.ring();
}

void RemoteNodes::take_rank_done(MessageReader& from, int rank) {
  const auto id = from.get<std::uint64_t>();
  const auto slot = from.get<std::size_t>();
  Command& command = control_.command_in(slot);
  timelines_.take(from, rank);
  const std::size_t place = command.places[static_cast<std::size_t>(rank)];
  Outbox& outbox = control_.outbox_at(rank, place);
  // The command that was in this place before has been collected, or this one would not have been published.
  std::vector<std::uint64_t>& arrays = arrays_at(rank, place);
  for (const std::uint64_t offset : arrays) memory_.inbound.free(offset, SharedHeap::Giveback::later);
  arrays.clear();
  take_report(from, memory_.segment, command, rank, outbox, [&](std::size_t bytes) {
    return arrays.emplace_back(
        memory_.inbound.allocate(bytes, SharedHeap::Contents::any, "the output of another node"));
  });
  if (outbox.vote == Vote::failed) command.failed.store(id, std::memory_order_seq_cst);
  control_.worker(rank).done.store(id, std::memory_order_seq_cst);
}

}  // namespace syncrun::detail

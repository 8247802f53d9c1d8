#include "master/nodes/remote_nodes.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "common/os/wait.hpp"
#include "common/text/fixed_text.hpp"
#include "master/nodes/command_message.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

RemoteNodes::RemoteNodes(Mailbox& mailbox, protocol::ControlBlock control, const Memory& memory,
                         std::vector<protocol::NodePlace> places, NodeExchange* exchange, NodeMoves* moves,
                         RelayRoot* root)
    : mailbox_(mailbox),
      control_(control),
      memory_(memory),
      exchange_(exchange),
      moves_(moves),
      root_(root),
      timelines_(control, memory.segment),
      arrays_(static_cast<std::size_t>(control.world_size()) * protocol::kInboxSize) {
  for (std::size_t node = 1; node < places.size(); ++node)
    others_.push_back({.place = places[node], .told = 0, .rows = {}});
}

template <class Visit>
void RemoteNodes::for_each_node_of(const protocol::RankSet& ranks, Visit&& visit) {
  for (Node& node : others_) {
    const protocol::RankSet::Part here = node.place.ranks_of(ranks);
    if (here.begin() != here.end()) visit(node);
  }
}

void RemoteNodes::publish(std::uint64_t, std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  if (exchange_ != nullptr) exchange_->add(slot);
  timelines_.note_sent(command);
  if (moves_ != nullptr && command.kind == protocol::CommandKind::move) {
    moves_->add(slot);
    moves_->order(slot);
  }
  shorten_changes(command.ranks);
  if (root_ != nullptr) publish_along_tree(slot);
  else for_each_node_of(command.ranks, [&](Node& node) { publish_to(node, slot); });
  forget_changes();
}

/// A node does not know whether commands of other nodes have failed. Only the source of a move asks for that (NodeMoves).
/// The rest of the master waits before it publishes anything else that would need it.
void RemoteNodes::check_dependencies(const Node& node, const protocol::Command& command) const {
  const auto* const move = std::get_if<protocol::MovePayload>(&command.payload);
  const auto* const first = memory_.segment.at<const protocol::Dependency>(command.dependencies);
  for (const protocol::Dependency& earlier : std::span(first, command.dependencies_count)) {
    const bool waits = earlier.rank != protocol::Dependency::kOwnRank && !node.place.has(earlier.rank);
    const bool is_source = move != nullptr && move->from == earlier.rank;
    if (!waits || is_source || earlier.slot == protocol::Dependency::kOnlyReads) continue;
    throw Error(ErrorKind::system, "a command on node " + std::to_string(node.place.node) + " depends on one of rank " +
                                       std::to_string(earlier.rank) + " on another node");
  }
}

void RemoteNodes::publish_to(Node& node, std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  MessageWriter message(MessageKind::command);
  const std::uint64_t told = node.told;
  const std::vector<SegmentRange> rows = rows_for(node, command);
  put_heap_changes(message, memory_.segment, changes_, told);
  put_rows(message, memory_.segment, rows);
  put_command(message, control_, memory_.segment, slot, node.place);
  put_consumed(message, node, command);
  mailbox_.send(node.place.node, message.take());
  send_bulk(node, rows);
}

/// A node gets four pieces. Nodes that know the same of the heap get the same changes, and all nodes get the same command.
/// The others are mostly those of the node before: no rows, or the same ones, and the same places.
void RemoteNodes::publish_along_tree(std::size_t slot) {
  const protocol::Command& command = control_.command_in(slot);
  Bundle bundle(command.id, 4);
  MessageWriter of_all;
  put_command_of_all(of_all, control_, memory_.segment, slot);
  const Bundle::Piece command_piece = bundle.add_piece(of_all.take());
  std::vector<std::pair<std::uint64_t, Bundle::Piece>> changes;  // by what a node knew
  std::optional<Bundle::Piece> last_rows, last_places;
  std::vector<std::byte> bytes;  // of a piece; its memory is used again
  std::vector<std::pair<const Node*, std::vector<SegmentRange>>> bulk;
  for_each_node_of(command.ranks, [&](Node& node) {
    const std::uint64_t told = node.told;
    std::vector<SegmentRange> rows = rows_for(node, command);
    auto known = std::find_if(changes.begin(), changes.end(), [told](const auto& one) { return one.first == told; });
    if (known == changes.end()) {
      MessageWriter message(MessageKind::command);
      put_heap_changes(message, memory_.segment, changes_, told);
      known = changes.insert(known, {told, bundle.add_piece(message.take())});
    }
    const auto piece = [&](std::optional<Bundle::Piece> last, auto&& put) {
      MessageWriter message(std::move(bytes));
      put(message);
      bytes = message.take();
      const Bundle::Piece number = bundle.add_piece_unless(last, bytes);
      bytes.clear();
      return number;
    };
    last_rows = piece(last_rows, [&](MessageWriter& message) { put_rows(message, memory_.segment, rows); });
    last_places = piece(last_places, [&](MessageWriter& message) {
      put_places(message, control_, slot, node.place);
      put_consumed(message, node, command);
    });
    bundle.add(node.place.node, std::array{known->second, *last_rows, command_piece, *last_places});
    if (std::any_of(rows.begin(), rows.end(), is_bulk)) bulk.emplace_back(&node, std::move(rows));
  });
  root_->send(bundle);
  for (const auto& [node, rows] : bulk) send_bulk(*node, rows);
}

/// The rows that the node lacks. It knows all changes of the heap from now on.
std::vector<SegmentRange> RemoteNodes::rows_for(Node& node, const protocol::Command& command) {
  if (command.dependencies_count != 0) check_dependencies(node, command);
  note_changes(node);
  return node.rows.take_missing(memory_.segment, command, node.place);
}

void RemoteNodes::note_changes(Node& node) {
  changes_.for_each(node.told, [&](const os::HeapChange& change) {
    if (change.node == os::HeapChange::kAllNodes || change.node == node.place.node) node.rows.note(change);
  });
  node.told = changes_.end();
}

/// A node that did not get the last command may have to learn of much that was freed in the meantime.
void RemoteNodes::shorten_changes(const protocol::RankSet& ranks) {
  std::uint64_t told = changes_.end();
  for_each_node_of(ranks, [&](const Node& node) { told = std::min(told, node.told); });
  if (told < std::exchange(published_, changes_.end())) changes_.shorten(told);
}

void RemoteNodes::tell_after_changes(MessageKind kind, std::span<const std::byte> rest) {
  changes_.shorten(0);
  for (Node& node : others_) {
    MessageWriter message(kind);
    put_heap_changes(message, memory_.segment, changes_, node.told);
    message.put_bytes(rest);
    note_changes(node);
    mailbox_.send(node.place.node, message.take());
  }
  forget_changes();
}

void RemoteNodes::put_consumed(MessageWriter& to, const Node& node, const protocol::Command& command) const {
  for (const int rank : node.place.ranks_of(command.ranks))
    to.put(control_.worker(rank).consumed.load(std::memory_order_relaxed));
}

/// The rows stay as they are until the command is done, and the agent needs them before that.
void RemoteNodes::send_bulk(const Node& node, std::span<const SegmentRange> rows) {
  for (const SegmentRange& range : rows) {
    if (is_bulk(range)) mailbox_.send_bulk(node.place.node, {memory_.segment.at(range.begin), range.count()});
  }
}

/// A node that gets no commands still has to learn of the changes, with its next command.
void RemoteNodes::forget_changes() noexcept {
  std::uint64_t known = changes_.end();
  for (const Node& node : others_) known = std::min(known, node.told);
  changes_.forget(known);
}

void RemoteNodes::spoil(std::uint64_t id, std::size_t slot) {
  MessageWriter message(MessageKind::spoil, slot, id);
  const protocol::RankSet& ranks = control_.command_in(slot).ranks;
  if (root_ == nullptr) {
    for_each_node_of(ranks, [&](const Node& node) { mailbox_.send(node.place.node, MessageWriter(message).take()); });
    return;
  }
  Bundle bundle;
  const Bundle::Piece piece = bundle.add_piece(message.take());
  for_each_node_of(ranks, [&](const Node& node) { bundle.add(node.place.node, {&piece, 1}); });
  root_->send(bundle);
}

void RemoteNodes::take_done(MessageReader& message) {
  while (!message.is_at_end()) take_rank_done(message, message.get<std::int32_t>());
  control_.header().to_master.ring();
}

protocol::Command& RemoteNodes::reported_command(int rank, std::uint64_t id, std::size_t slot) const {
  const bool is_elsewhere = rank >= 0 && rank < control_.world_size() && !control_.place().has(rank);
  if (is_elsewhere && slot < control_.slots()) {
    protocol::Command& command = control_.command_in(slot);
    if (command.id == id && command.ranks.has(rank)) return command;
  }
  throw Error(ErrorKind::system, "a report came about command " + std::to_string(id) + " in slot " +
                                     std::to_string(slot) + " and rank " + std::to_string(rank) +
                                     ", which do not belong together");
}

void RemoteNodes::take_rank_done(MessageReader& from, int rank) {
  const auto id = from.get<std::uint64_t>();
  const auto slot = from.get<std::size_t>();
  protocol::Command& command = reported_command(rank, id, slot);
  timelines_.take(from, rank);
  const std::size_t place = command.places[static_cast<std::size_t>(rank)];
  protocol::Outbox& outbox = control_.outbox_at(rank, place);
  // The command that was in this place before has been collected, or this one would not have been published.
  std::vector<std::uint64_t>& arrays = arrays_at(rank, place);
  free_arrays(arrays);
  std::optional<Error> shortage;
  take_report(from, memory_.segment, command, rank, outbox, [&](std::size_t bytes) -> std::uint64_t {
    if (shortage) return 0;
    try {
      return arrays.emplace_back(
          memory_.inbound.allocate(bytes, os::SharedHeap::Contents::any, "the output of another node"));
    } catch (const Error& error) {
      shortage = error;
      return 0;
    }
  });
  if (shortage) {
    free_arrays(arrays);
    fail(outbox, *shortage);
  }
  if (outbox.vote == protocol::Vote::failed) command.failed.store(id, std::memory_order_seq_cst);
  control_.worker(rank).done.store(id, std::memory_order_seq_cst);
}

void RemoteNodes::free_arrays(std::vector<std::uint64_t>& arrays) noexcept {
  for (const std::uint64_t offset : arrays) memory_.inbound.free(offset, os::SharedHeap::Giveback::later);
  arrays.clear();
}

/// The master has no memory for what the rank reports. So the command fails, and the node is not at fault.
void RemoteNodes::fail(protocol::Outbox& outbox, const Error& why) noexcept {
  outbox.vote = protocol::Vote::failed;
  outbox.may_have_updated = true;  // the rank itself has not failed
  outbox.is_fatal = false;
  outbox.error_kind = why.kind();
  outbox.native_code = why.native_code();
  outbox.failed_ns = os::Clock::now().time_since_epoch().count();
  outbox.failed_phase = protocol::Phase::reduction;
  text::put_text(outbox.message, why.what());
}

}  // namespace syncrun::detail::master::nodes

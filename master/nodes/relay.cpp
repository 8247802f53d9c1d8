#include "master/nodes/relay.hpp"

#include <algorithm>
#include <utility>

namespace syncrun::detail::master::nodes {

// ---- the master -----------------------------------------------------------------------------------------------

void RelayRoot::send(const Bundle& bundle) {
  if (!has_tree()) {
    for (const int node : bundle.nodes()) sender_.send(node, *bundle.message_of(node));
    return;
  }
  for (const NodeTree::Branch& branch : branches_) {
    if (auto part = bundle.part_of(branch)) sender_.send(branch.child, *std::move(part));
  }
}

void RelayRoot::send(int node, std::vector<std::byte> message) {
  Bundle bundle;
  const Bundle::Piece piece = bundle.add_piece(std::move(message));
  bundle.add(node, {&piece, 1});
  send(bundle);
}

// ---- the agents -----------------------------------------------------------------------------------------------

Relay::Relay(Sender& sender, const NodeTree& tree, int node)
    : sender_(sender), node_(node), parent_(tree.parent(node)), branches_(tree.branches(node)) {}

std::vector<int> Relay::neighbours() const {
  std::vector<int> nodes{parent_};
  for (const NodeTree::Branch& branch : branches_) nodes.push_back(branch.child);
  return nodes;
}

std::optional<std::vector<std::byte>> Relay::take_bundle(MessageReader& message) {
  const Bundle bundle(message);
  int parts = 0;
  for (const NodeTree::Branch& branch : branches_) {
    auto part = bundle.part_of(branch);
    if (!part) continue;
    sender_.send(branch.child, *std::move(part));
    ++parts;
  }
  auto own = bundle.message_of(node_);
  if (own) ++parts;
  if (bundle.command() != 0 && parts != 0) open_[bundle.command()] += parts;
  return own;
}

void Relay::take_reports(MessageReader& message) {
  const auto urgency = message.get<bool>() ? Urgency::at_once : Urgency::may_wait;
  for (const std::uint64_t id : message.get_list<std::uint64_t>()) finish(id);
  const auto messages = message.rest();
  waiting_.insert(waiting_.end(), messages.begin(), messages.end());
  send_if_due(urgency);
}

void Relay::add(int node, std::span<const std::byte> message) {
  MessageWriter to(std::move(waiting_));
  to.put(static_cast<std::int32_t>(node), std::uint64_t{message.size()});
  to.put_bytes(message);
  waiting_ = to.take();
}

void Relay::send(std::vector<std::byte> message) {
  add(node_, message);
  send_if_due(Urgency::at_once);
}

void Relay::report(std::vector<std::byte> message, std::span<const std::uint64_t> over, Urgency urgency) {
  for (const std::uint64_t id : over) finish(id);
  add(node_, message);
  send_if_due(urgency);
}

/// After the end of the tree, commands of which this relay does not know may be over.
void Relay::finish(std::uint64_t id) {
  const auto open = open_.find(id);
  if (open == open_.end() || --open->second != 0) return;
  open_.erase(open);
  over_.push_back(id);
}

void Relay::send_if_due(Urgency urgency) {
  if (urgency == Urgency::at_once || !over_.empty() || waiting_.size() > kMostHeld) send_reports(urgency);
}

void Relay::send_reports(Urgency urgency) {
  waiting_since_.reset();
  MessageWriter message(MessageKind::reports);
  message.reserve(waiting_.size() + over_.size() * sizeof(std::uint64_t) + 16);
  message.put(urgency == Urgency::at_once);
  message.put_list(std::span<const std::uint64_t>(over_));
  message.put_bytes(waiting_);
  over_.clear();
  waiting_.clear();
  sender_.send(parent_, message.take());
}

bool Relay::look(os::Clock::time_point now) {
  if (waiting_.empty()) return false;
  if (!waiting_since_) waiting_since_ = now;
  if (now - *waiting_since_ < kLongestHold) return false;
  send_reports(Urgency::may_wait);
  return true;
}

void Relay::forget(std::uint64_t last) { open_.erase(open_.begin(), open_.upper_bound(last)); }

void Relay::end_tree() {
  parent_ = 0;
  if (!waiting_.empty()) send_reports(Urgency::at_once);
}

}  // namespace syncrun::detail::master::nodes

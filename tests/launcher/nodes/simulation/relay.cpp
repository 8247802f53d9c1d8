#include "tests/launcher/nodes/simulation/relay.hpp"

#include <algorithm>

#include "syncrun/error.hpp"

namespace syncrun::test {

using detail::MessageKind;
using detail::MessageReader;
using detail::MessageWriter;

namespace {

/// What a node gets, as the difference from the first message of the branch. Mostly nothing differs: an offset means
/// the same on all nodes.
struct Difference {
  std::int32_t node;
  std::uint32_t same_before;
  std::uint32_t same_after;
};

void put_difference(MessageWriter& to, int node, std::span<const std::byte> base, std::span<const std::byte> message) {
  const std::size_t shorter = std::min(base.size(), message.size());
  const auto first = base.first(shorter);
  const auto differs = std::mismatch(first.begin(), first.end(), message.begin()).first;
  const auto same_before = static_cast<std::size_t>(differs - first.begin());
  std::size_t same_after = 0;
  while (same_before + same_after < shorter && base.rbegin()[static_cast<std::ptrdiff_t>(same_after)] ==
                                                   message.rbegin()[static_cast<std::ptrdiff_t>(same_after)])
    ++same_after;
  to.put(Difference{node, static_cast<std::uint32_t>(same_before), static_cast<std::uint32_t>(same_after)});
  to.put_list(message.subspan(same_before, message.size() - same_before - same_after));
}

std::vector<std::byte> apply(const Difference& difference, std::span<const std::byte> own,
                             std::span<const std::byte> base) {
  if (std::size_t{difference.same_before} + difference.same_after > base.size())
    throw Error(ErrorKind::system, "a relayed command refers to bytes that it does not have");
  std::vector<std::byte> message(base.begin(), base.begin() + difference.same_before);
  message.insert(message.end(), own.begin(), own.end());
  message.insert(message.end(), base.end() - difference.same_after, base.end());
  return message;
}

MessageWriter begin_command(std::uint64_t id, std::span<const std::byte> base) {
  MessageWriter message(kRelayedCommand);
  message.put(id);
  message.put_list(base);
  return message;
}

bool is_of(MessageKind kind, std::span<const std::byte> message) noexcept {
  return static_cast<MessageKind>(message.front()) == kind;
}

}  // namespace

void RelayRoot::send(int node, std::vector<std::byte> message) {
  if (is_of(MessageKind::command, message)) commands_.emplace_back(node, std::move(message));
  else mailbox().send(node, std::move(message));
}

void RelayRoot::send_command(std::uint64_t id) {
  for (const NodeTree::Branch& branch : branches_) {
    std::optional<MessageWriter> message;
    std::span<const std::byte> base;
    for (const auto& [node, command] : commands_) {
      if (!branch.has(node)) continue;
      if (!message) {
        base = command;
        message = begin_command(id, base);
      }
      put_difference(*message, node, base, command);
    }
    if (message) mailbox().send(branch.child, message->take());
  }
  commands_.clear();
}

Relay::Relay(detail::Mailbox& mailbox, const NodeTree& tree, int node)
    : RelayingMailbox(mailbox), parent_(tree.parent(node)), parts_{{node, node + 1}} {
  for (const NodeTree::Branch& branch : tree.branches(node)) parts_.push_back(branch);
}

void Relay::send(int node, std::vector<std::byte> message) {
  if (!is_of(MessageKind::done, message)) return mailbox().send(node, std::move(message));
  reports_.insert(reports_.end(), message.begin() + 1, message.end());
}

std::optional<Relay::Command> Relay::take_command(MessageReader& message) {
  const auto id = message.get<std::uint64_t>();
  const auto base = message.get_bytes(message.get<std::size_t>());
  std::optional<Command> own;
  std::vector<std::optional<MessageWriter>> outgoing(parts_.size());
  while (!message.is_at_end()) {
    const auto difference = message.get<Difference>();
    const auto bytes = message.get_bytes(message.get<std::size_t>());
    const auto part = std::find_if(parts_.begin(), parts_.end(),
                                   [&](const NodeTree::Branch& each) { return each.has(difference.node); });
    if (part == parts_.end()) throw Error(ErrorKind::system, "a relayed command came to the wrong node");
    if (part == parts_.begin()) {
      own = {id, apply(difference, bytes, base)};
      continue;
    }
    auto& to = outgoing[static_cast<std::size_t>(part - parts_.begin())];
    if (!to) to = begin_command(id, base);
    to->put(difference);
    to->put_list(bytes);
  }
  int& open = open_[id];
  if (own) ++open;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (!outgoing[i]) continue;
    ++open;
    mailbox().send(parts_[i].child, outgoing[i]->take());
  }
  return own;
}

void Relay::take_reports(MessageReader& message) {
  for (const std::uint64_t id : message.get_list<std::uint64_t>()) finish(id);
  const auto reports = message.rest();
  reports_.insert(reports_.end(), reports.begin(), reports.end());
}

void Relay::finish(std::uint64_t id) {
  const auto open = open_.find(id);
  if (open == open_.end()) throw Error(ErrorKind::system, "a command is over that was not relayed");
  if (--open->second != 0) return;
  open_.erase(open);
  over_.push_back(id);
}

bool Relay::report(detail::Clock::time_point now) {
  if (over_.empty()) {
    if (reports_.empty()) return false;
    if (!held_since_) held_since_ = now;
    if (now - *held_since_ < kLongestHold) return false;
  }
  held_since_.reset();
  MessageWriter message(kRelayedReports);
  message.put_list(std::span<const std::uint64_t>(over_));
  message.put_bytes(reports_);
  over_.clear();
  reports_.clear();
  mailbox().send(parent_, message.take());
  return true;
}

}  // namespace syncrun::test

#pragma once

// A listener that keeps what a group of nodes tells it.

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "launcher/nodes/node_group.hpp"

namespace syncrun::test {

/// Each message has to be a number. The thread of a group may call the listener.
class Notes final : public detail::NodeListener {
 public:
  /// A message of the kind `unreadable` makes the listener throw.
  explicit Notes(detail::MessageKind unreadable = detail::MessageKind::rank_lost) : unreadable_(unreadable) {}
  void on_message(int node, detail::MessageReader& message) override {
    const std::lock_guard lock(mutex_);
    if (message.kind() == unreadable_) throw Error(ErrorKind::system, "cannot be read");
    messages_.emplace_back(node, message.get<int>());
  }
  void on_node_lost(int node, const Error& why) noexcept override {
    const std::lock_guard lock(mutex_);
    losses_[node] = why.what();
  }
  /// The senders and the numbers, in the order in which they came.
  std::vector<std::pair<int, int>> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }
  std::vector<int> messages_of(int node) const {
    std::vector<int> numbers;
    for (const auto& [from, number] : messages()) {
      if (from == node) numbers.push_back(number);
    }
    return numbers;
  }
  /// Why the node is lost. Empty if it is not lost.
  std::string loss_of(int node) const {
    const std::lock_guard lock(mutex_);
    const auto found = losses_.find(node);
    return found == losses_.end() ? std::string() : found->second;
  }
  std::size_t losses() const {
    const std::lock_guard lock(mutex_);
    return losses_.size();
  }

 private:
  detail::MessageKind unreadable_;
  mutable std::mutex mutex_;
  std::vector<std::pair<int, int>> messages_;
  std::map<int, std::string> losses_;
};

}  // namespace syncrun::test

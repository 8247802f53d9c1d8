#pragma once

// Groups of nodes on a fake network, and a listener that keeps what a group tells it.

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "master/nodes/node_group.hpp"
#include "tests/master/nodes/fake_transport.hpp"
#include "tests/support/slowdown.hpp"

namespace syncrun::test {

using detail::os::Clock;
using detail::os::Milliseconds;

/// Each message has to be a number. The thread of a group may call the listener.
class Notes final : public detail::master::nodes::NodeListener {
 public:
  /// A message of the kind rank_lost makes the listener throw.
  void on_message(int node, detail::master::nodes::MessageReader& message) override {
    const std::lock_guard lock(mutex_);
    if (message.kind() == detail::master::nodes::MessageKind::rank_lost)
      throw Error(ErrorKind::system, "cannot be read");
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
  mutable std::mutex mutex_;
  std::vector<std::pair<int, int>> messages_;
  std::map<int, std::string> losses_;
};

/// Nodes that have not joined yet. Signs of life do not matter, if the test does not set other limits.
class Groups : public testing::Test {
 protected:
  using Limits = detail::master::nodes::NodeGroup::Limits;

  explicit Groups(int nodes, const Limits& limits = {.silence = Milliseconds(60'000), .beat = Milliseconds(60'000)})
      : network(nodes), limits_(limits) {}
  detail::master::nodes::NodeGroup& join(int node) { return groups.emplace_back(network.own(node), limits_); }
  static detail::master::nodes::MessageWriter number(detail::master::nodes::MessageKind kind, int value) {
    detail::master::nodes::MessageWriter message(kind);
    message.put(value);
    return message;
  }
  /// Lets messages pass until `holds()`.
  template <class Holds>
  bool until(Holds&& holds) {
    const auto end = Clock::now() + kSlowdown * std::chrono::seconds(20);
    while (!holds()) {
      if (Clock::now() > end) return false;
      for (auto& group : groups) group.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  FakeNetwork network;
  std::deque<detail::master::nodes::NodeGroup> groups;

 private:
  Limits limits_;
};

}  // namespace syncrun::test

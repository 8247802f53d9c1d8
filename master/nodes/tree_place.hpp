#pragma once

// The place of this node in the tree of its job (relay.hpp).

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "master/nodes/relay.hpp"

namespace syncrun::detail::master::nodes {

/// The tree is made once, and stays. Any thread may call any function, but in an agent, only the thread that handles
/// messages uses the relay.
class TreePlace {
 public:
  /// There is a tree from now on, if the job has at least `from` nodes. Once there is one, later calls change nothing.
  /// Relays send by `sender` (see RelayRoot).
  void use(int from, int node, int nodes, Sender& sender);
  /// From how many nodes on a job has a tree. Returns 0 if this job has no tree.
  int from() const noexcept { return from_.load(std::memory_order_acquire); }
  /// The master's end of the tree. Returns null in an agent, and if there is no tree.
  RelayRoot* root() noexcept { return from() != 0 && root_ ? &*root_ : nullptr; }
  /// This agent's place in the tree. Returns null in the master, and if there is no tree.
  Relay* relay() noexcept { return from() != 0 && relay_ ? &*relay_ : nullptr; }
  /// In an agent: the other agents next to it.
  std::span<const int> neighbours() const noexcept {
    return from() != 0 ? std::span(neighbours_) : std::span<const int>();
  }
  /// True if messages may be lost that were sent along the tree, because a node is lost.
  bool is_broken() noexcept { return root() != nullptr && !root()->has_tree(); }
  /// In an agent: the master has ended the tree.
  void end();
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }

 private:
  std::optional<RelayRoot> root_;
  std::optional<Relay> relay_;
  std::vector<int> neighbours_;
  std::atomic<int> from_ = 0;  // is set last
  std::atomic<bool> has_ended_ = false;
};

}  // namespace syncrun::detail::master::nodes

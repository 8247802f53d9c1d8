#pragma once

// How the nodes of a command tell each other the votes of their ranks, if they are many: along a tree of these nodes.
// Each node sends its parent one vote for all nodes below it. The first node sends the result back the same way.

#include <cstddef>
#include <optional>
#include <vector>

#include "common/protocol/outcome.hpp"

namespace syncrun::detail::master::nodes {

/// The part of one node in it.
class VoteTree {
 public:
  /// `nodes` are those of the command, in order. `own` is the place of this node among them.
  VoteTree(const std::vector<int>& nodes, std::size_t own);

  /// The node that gets this node's vote. The first node has none, and returns nothing.
  std::optional<int> parent() const noexcept { return parent_; }
  const std::vector<int>& children() const noexcept { return children_; }
  /// This node, or a child for all nodes below it, has voted. Throws Error (system) if it has voted before, or has no vote
  /// here.
  void note(int node, protocol::Vote vote);
  /// The vote of this node and of all nodes below it. Empty until all have voted.
  std::optional<protocol::Vote> result() const noexcept;

 private:
  int own_;
  std::optional<int> parent_;
  std::vector<int> children_;
  std::vector<int> missing_;  // that have not voted
  bool is_ok_ = true;
};

}  // namespace syncrun::detail::master::nodes

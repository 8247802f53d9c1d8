#pragma once

// The tree of nodes along which messages travel in a job of many nodes.

#include <vector>

namespace syncrun::detail::master::nodes {

/// The master is the root. The nodes below a node are a range of numbers. It is divided among the children of the node
/// in shares that differ by one node at most, so the tree is as flat as its fan-out allows. Each child is the first
/// node of its share.
class NodeTree {
 public:
  /// A child and the nodes below it.
  struct Branch {
    int child = 0;
    int end = 0;
    bool has(int node) const noexcept { return node >= child && node < end; }
  };

  /// The fan-out that jobs use: about the square root of the number of nodes. Then most nodes are two levels below the
  /// master, and the model of calls over many nodes has its shortest calls near this (docs/performance-notes.md).
  static int usual_fan_out(int nodes) noexcept;

  /// `fan_out` is how many children a node has at most.
  NodeTree(int nodes, int fan_out);

  int nodes() const noexcept { return static_cast<int>(below_.size()); }
  /// -1 for the master.
  int parent(int node) const { return parents_[static_cast<std::size_t>(node)]; }
  std::vector<Branch> branches(int node) const;

 private:
  int fan_out_;
  std::vector<Branch> below_;  // by node: itself, and the nodes below it
  std::vector<int> parents_;
};

}  // namespace syncrun::detail::master::nodes

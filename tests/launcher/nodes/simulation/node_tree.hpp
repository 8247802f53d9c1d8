#pragma once

// The tree of nodes along which the commands of the master travel, and the reports of the agents back.

#include <vector>

namespace syncrun::test {

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

}  // namespace syncrun::test

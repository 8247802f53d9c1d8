#include "master/nodes/node_tree.hpp"

#include <algorithm>
#include <cmath>

#include "common/arrays/row_range.hpp"

namespace syncrun::detail::master::nodes {

int NodeTree::usual_fan_out(int nodes) noexcept {
  return std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(nodes - 1)))));
}

NodeTree::NodeTree(int nodes, int fan_out)
    : fan_out_(fan_out), below_(static_cast<std::size_t>(nodes)), parents_(static_cast<std::size_t>(nodes), -1) {
  below_.front() = {0, nodes};
  for (int node = 0; node < nodes; ++node) {  // a parent has a lower number than its children
    for (const Branch& branch : branches(node)) {
      below_[static_cast<std::size_t>(branch.child)] = branch;
      parents_[static_cast<std::size_t>(branch.child)] = node;
    }
  }
}

std::vector<NodeTree::Branch> NodeTree::branches(int node) const {
  const int first = node + 1;
  const int count = below_[static_cast<std::size_t>(node)].end - first;
  const int children = std::min(fan_out_, count);
  std::vector<Branch> branches;
  for (int i = 0; i < children; ++i) {
    const auto share = arrays::share_of(count, children, i);
    branches.push_back({first + static_cast<int>(share.begin), first + static_cast<int>(share.end)});
  }
  return branches;
}

}  // namespace syncrun::detail::master::nodes

#include "master/nodes/tree_place.hpp"

namespace syncrun::detail::master::nodes {

void TreePlace::use(int from, int node, int nodes, Sender& sender) {
  if (this->from() != 0 || nodes < from) return;
  const NodeTree tree(nodes, NodeTree::usual_fan_out(nodes));
  if (node == kMasterNode) root_.emplace(sender, tree);
  else neighbours_ = relay_.emplace(sender, tree, node).neighbours();
  std::erase(neighbours_, kMasterNode);
  from_.store(from, std::memory_order_release);
}

void TreePlace::end() {
  has_ended_.store(true, std::memory_order_release);
  relay_->end_tree();
}

}  // namespace syncrun::detail::master::nodes

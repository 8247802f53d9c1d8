#include "master/nodes/vote_tree.hpp"

#include <algorithm>
#include <string>

#include "master/nodes/node_tree.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

VoteTree::VoteTree(const std::vector<int>& nodes, std::size_t own) : own_(nodes[own]) {
  const int count = static_cast<int>(nodes.size());
  const NodeTree tree(count, NodeTree::usual_fan_out(count));
  const int parent = tree.parent(static_cast<int>(own));
  if (parent >= 0) parent_ = nodes[static_cast<std::size_t>(parent)];
  for (const NodeTree::Branch& branch : tree.branches(static_cast<int>(own)))
    children_.push_back(nodes[static_cast<std::size_t>(branch.child)]);
  missing_ = children_;
  missing_.push_back(own_);
}

void VoteTree::note(int node, protocol::Vote vote) {
  const auto place = std::find(missing_.begin(), missing_.end(), node);
  if (place == missing_.end())
    throw Error(ErrorKind::system, "a vote came from node " + std::to_string(node) + " that node " +
                                       std::to_string(own_) + " does not expect");
  missing_.erase(place);
  is_ok_ = is_ok_ && vote == protocol::Vote::ok;
}

std::optional<protocol::Vote> VoteTree::result() const noexcept {
  if (!missing_.empty()) return std::nullopt;
  return is_ok_ ? protocol::Vote::ok : protocol::Vote::failed;
}

}  // namespace syncrun::detail::master::nodes

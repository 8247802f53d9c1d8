#include "master/nodes/known_nodes.hpp"

#include <utility>

namespace syncrun::detail::master::nodes {

std::string KnownNodes::name_of(int node) const {
  const os::MutexLock lock(mutex_);
  const std::string number = "node " + std::to_string(node);
  return names_.empty() ? number : number + " (" + names_[static_cast<std::size_t>(node)] + ")";
}

bool KnownNodes::lose(int node, const Error& why) noexcept {
  {
    const os::MutexLock lock(mutex_);
    auto& reason = loss_reasons_[static_cast<std::size_t>(node)];
    if (reason) return false;
    reason = why;
  }
  at(node).is_lost.store(true, std::memory_order_release);
  has_lost_node_.store(true, std::memory_order_release);
  return true;
}

void KnownNodes::take_leave(int node, Farewell farewell, const Error& why) {
  {
    const os::MutexLock lock(mutex_);
    farewell_ = std::move(farewell);
    auto& reason = loss_reasons_[static_cast<std::size_t>(node)];
    if (!reason) reason = why;
  }
  at(node).is_lost.store(true, std::memory_order_release);
}

}  // namespace syncrun::detail::master::nodes

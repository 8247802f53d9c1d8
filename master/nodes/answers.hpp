#pragma once

// What the master collects from all agents before a session starts.

#include <atomic>
#include <optional>

#include "master/nodes/node_group.hpp"

namespace syncrun::detail::master::nodes {

/// Collects an answer of each node. Another thread may handle the messages meanwhile.
class Answers : public NodeListener {
 public:
  /// Listens until all have answered. Returns false if they have not within the limit. Throws the first failure, or the loss
  /// of a node.
  bool await(NodeGroup& group, os::Milliseconds limit) {
    group.listen(this);
    const bool is_over = group.await(limit, [this] { return is_over_.load(std::memory_order_acquire); });
    group.listen(nullptr);
    if (failure_) throw Error(*failure_);
    return is_over;
  }
  void on_node_lost(int, const Error& why) noexcept override { fail(why); }

 protected:
  void fail(const Error& why) noexcept {
    if (!failure_) failure_ = why;
    finish();
  }
  void finish() noexcept { is_over_.store(true, std::memory_order_release); }

 private:
  std::optional<Error> failure_;
  std::atomic<bool> is_over_{false};
};

}  // namespace syncrun::detail::master::nodes

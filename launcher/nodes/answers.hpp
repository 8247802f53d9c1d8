#pragma once

// What the master collects from all agents before a session starts.

#include <atomic>
#include <optional>

#include "launcher/nodes/node_group.hpp"

namespace syncrun::detail {

/// Collects an answer of each node. Another thread may handle the messages meanwhile. Until the group has stopped listening,
/// only is_over() may be called.
class Answers : public NodeListener {
 public:
  /// True once all have answered, or one has failed or is lost.
  bool is_over() const noexcept { return is_over_.load(std::memory_order_acquire); }
  /// The first failure.
  const std::optional<Error>& failure() const noexcept { return failure_; }
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

}  // namespace syncrun::detail

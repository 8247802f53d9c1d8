#pragma once

// What is known of the nodes of a job.

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/os/mutex.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

/// What the master says at its end.
struct Farewell {
  int exit_code = 0;
  std::string verdict;  // why the program has failed; may be empty
};

/// Their names, which are lost and why, and how the master has taken leave. Any thread.
class KnownNodes {
 public:
  explicit KnownNodes(int nodes)
      : nodes_(static_cast<std::size_t>(nodes)), loss_reasons_(static_cast<std::size_t>(nodes)) {}

  int count() const noexcept { return static_cast<int>(nodes_.size()); }
  /// "node 1 (n2)". The number only, until the name is known.
  std::string name_of(int node) const;
  std::vector<std::string> names() const {
    const os::MutexLock lock(mutex_);
    return names_;
  }
  void set_names(std::vector<std::string> names) {
    const os::MutexLock lock(mutex_);
    names_ = std::move(names);
  }

  /// Why a node is lost. Empty if it is not.
  std::optional<Error> loss_of(int node) const {
    const os::MutexLock lock(mutex_);
    return loss_reasons_[static_cast<std::size_t>(node)];
  }
  bool is_lost(int node) const noexcept { return at(node).is_lost.load(std::memory_order_acquire); }
  /// False if all that are lost have taken leave.
  bool has_lost_node() const noexcept { return has_lost_node_.load(std::memory_order_acquire); }
  /// The node is lost for this reason. Returns false if it was lost before.
  bool lose(int node, const Error& why) noexcept;
  /// The last message of the node, `bye` or `fault`, has arrived. Perhaps nobody has handled it yet.
  void note_end(int node) noexcept { at(node).has_ended.store(true, std::memory_order_release); }
  bool has_ended(int node) const noexcept { return at(node).has_ended.load(std::memory_order_acquire); }
  /// The node has taken leave. It counts as lost for this reason, unless it was lost before.
  void take_leave(int node, Farewell farewell, const Error& why);
  std::optional<Farewell> farewell() const {
    const os::MutexLock lock(mutex_);
    return farewell_;
  }
  /// In an agent: why it cannot continue. It hears nothing from another agent, and the master has not said that the other
  /// node is lost. So only the link between the two is broken, and nobody else notices. Empty if no link is broken.
  std::optional<Error> broken_link() const {
    const os::MutexLock lock(mutex_);
    return broken_link_;
  }
  void note_broken_link(const Error& why) {
    const os::MutexLock lock(mutex_);
    if (!broken_link_) broken_link_ = why;
  }
  /// Why this program has failed. The other nodes hear it at the end.
  void set_verdict(std::string verdict) {
    const os::MutexLock lock(mutex_);
    verdict_ = std::move(verdict);
  }
  std::string verdict() const {
    const os::MutexLock lock(mutex_);
    return verdict_;
  }

 private:
  struct Node {
    std::atomic<bool> is_lost = false;
    std::atomic<bool> has_ended = false;
  };
  const Node& at(int node) const noexcept { return nodes_[static_cast<std::size_t>(node)]; }
  Node& at(int node) noexcept { return nodes_[static_cast<std::size_t>(node)]; }

  std::vector<Node> nodes_;
  std::atomic<bool> has_lost_node_ = false;
  mutable os::Mutex mutex_;
  std::vector<std::optional<Error>> loss_reasons_ SYNCRUN_GUARDED_BY(mutex_);  // by node; empty if it is not lost
  std::vector<std::string> names_ SYNCRUN_GUARDED_BY(mutex_);
  std::optional<Error> broken_link_ SYNCRUN_GUARDED_BY(mutex_);
  std::optional<Farewell> farewell_ SYNCRUN_GUARDED_BY(mutex_);
  std::string verdict_ SYNCRUN_GUARDED_BY(mutex_);
};

}  // namespace syncrun::detail::master::nodes

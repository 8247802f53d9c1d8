#pragma once

// The producers of one queue, on all nodes: their processes from the start to the end. A session ends those of its queues
// when it ends.

#include <memory>
#include <optional>
#include <string>

#include "common/os/fork_guard.hpp"
#include "common/os/mutex.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/queue_block.hpp"
#include "master/dispatch/pool_wait.hpp"
#include "master/nodes/remote_queues.hpp"
#include "master/pool/worker_pool.hpp"
#include "master/process/nursery.hpp"
#include "master/queues/producer_processes.hpp"

namespace syncrun::detail::master::session {

class QueueProcesses {
 public:
  /// How long other nodes may take longer than this one to say that their producers have ended.
  static constexpr os::Milliseconds kRemoteEndLimit = std::chrono::seconds(7);

  /// `other_queues` is null unless the producers also run on other nodes. Refers to both until the processes have ended.
  QueueProcesses(pool::WorkerPool& pool, nodes::RemoteQueues* other_queues)
      : pool_(pool), other_queues_(other_queues) {}
  ~QueueProcesses() { end(); }
  QueueProcesses(const QueueProcesses&) = delete;
  QueueProcesses& operator=(const QueueProcesses&) = delete;

  /// Starts them on all nodes at the same time, and does not wait until they run. `node` is the name of this node, or
  /// empty if they run on no other one. Throws Error (system, timeout).
  void start(const queues::ProducersStart& start, const protocol::QueueLayout& layout,
             const protocol::QueueBlock& block, const std::string& node);
  /// The processes on this node. Only between start() and end().
  process::Nursery& nursery() const noexcept { return *nursery_; }
  /// Only after start().
  const queues::ProducerWatcher& watcher() const noexcept { return *watcher_; }
  bool are_on_every_node() const noexcept { return other_queues_ != nullptr; }
  /// The producers on other nodes, none of them unless they are on every node. Only after start().
  nodes::RemoteQueue& remote() const noexcept { return *remote_; }
  const std::string& name_of(int node) const { return other_queues_->name_of(node); }

  /// False in a child that was forked later. The processes are not its own.
  bool are_here() const noexcept { return fork_guard_.is_here(); }

  /// As dispatch::wait_until(): also handles what comes from other nodes.
  template <class Limit, class Ready, class Interrupted>
  os::Woken wait(Limit& limit, Ready&& ready, Interrupted&& interrupted) {
    return dispatch::wait_until(pool_, pool::WorkerPool::Awaited::batch, policy_, limit, ready, interrupted);
  }
  bool is_node_lost() const { return remote_->is_node_lost(); }
  /// Tells those on other nodes to end, and does not wait.
  void close_remote() noexcept {
    if (are_on_every_node()) other_queues_->end(*remote_, nodes::QueueEnd::close);
  }
  /// Waits until those on other nodes have ended. Returns false if some may be left.
  bool await_remote(os::Milliseconds limit) noexcept;
  /// Kills those that are left. If there are some on other nodes, only a thread that is inside the session may call it, as
  /// long as the session is open. Otherwise, any thread may.
  void end() noexcept;
  /// True if processes may be left after end() that still write to the memory of the queue.
  bool may_write() const noexcept { return may_write_; }

 private:
  pool::WorkerPool& pool_;
  nodes::RemoteQueues* other_queues_;
  os::ForkGuard fork_guard_;
  os::WaitPolicy policy_ = os::WaitPolicy::yielding();
  os::Mutex end_mutex_;  // held by end(), which changes what follows
  std::shared_ptr<nodes::RemoteQueue> remote_;
  bool is_remote_over_ SYNCRUN_GUARDED_BY(end_mutex_) = false;  // they were told to end, and have ended, or too late
  bool may_write_ = false;
  std::optional<queues::ProducerWatcher> watcher_;
  std::unique_ptr<process::Nursery> nursery_;
};

}  // namespace syncrun::detail::master::session

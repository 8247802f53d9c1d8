#pragma once

// A pool whose workers are processes on this machine. They share a segment with the master, and a nursery watches them.

#include <memory>

#include "common/os/fork_guard.hpp"
#include "common/os/oom_watch.hpp"
#include "master/pool/worker_pool.hpp"
#include "master/pool/worker_watcher.hpp"
#include "master/process/nursery.hpp"
#include "master/settings/settings.hpp"

namespace syncrun::detail::master::pool {

class LocalPool final : public WorkerPool {
 public:
  /// Reserves the segment and prepares the control block. Starts no process. Refers to `settings` as long as it lives.
  /// Throws Error (usage, system).
  explicit LocalPool(const settings::Settings& settings);
  /// The same for one of several nodes. The pool has the workers of this node only. `settings` has the devices of all
  /// nodes. The control block has the slots of all ranks, so that an offset is the same on all nodes.
  /// `segment_bytes` is the size of the segment: 0 for the usual one.
  LocalPool(const settings::Settings& settings, const protocol::NodePlace& place, std::size_t segment_bytes = 0);
  ~LocalPool() override { end(); }

  void start() override;
  void watch() override { nursery_->watch_lives(); }
  void expect_ends() noexcept override { nursery_->expect_ends(); }
  void kill_all() noexcept override { nursery_->kill_all(); }
  void end() noexcept override;

  void note_shared_memory(std::size_t used_bytes) override;

  int pid(int rank) const noexcept override;
  process::ChildEnd await_end(int rank) override;
  std::optional<int> end_status(int rank) override {
    return nursery_->await_end(place_.local_rank(rank), os::Milliseconds(0));
  }
  bool await_all_ends(os::Milliseconds limit) override { return nursery_->await_all_ends(limit); }
  int stop_signal(int rank) const override { return nursery_->stop_signal(place_.local_rank(rank)); }
  int tracer(int rank) const override;
  void take_stacks(std::vector<RankState>& states) override;
  std::vector<std::string> last_stderr(int rank) override { return nursery_->last_stderr(place_.local_rank(rank)); }
  std::string describe_kill() const override { return oom_watch_.describe_kill(); }
  std::optional<Error> watch_failure() const override;
  bool is_debugged() const override;
  os::Clock::duration awake_time(os::Clock::time_point now) noexcept override { return nursery_->awake_time(now); }

  bool reap(int rank) override;
  void replace(const std::vector<Successor>& successors) override;
  void watch(int rank) override { nursery_->watch_life(place_.local_rank(rank)); }

  /// False in a child that the program has forked.
  bool is_here() const noexcept { return fork_guard_.is_here(); }
  /// Kills the workers that are left, and does not wait for their ends. end() follows.
  void stop() noexcept;
  /// The two parts of replace(). The second one starts the successors of this node's ranks.
  void forget_losses(const std::vector<Successor>& successors) noexcept { workers_->forget_losses(successors); }
  void start_successors(const std::vector<Successor>& successors);

 private:
  void prepare_control(std::size_t control_bytes);

  const settings::Settings& settings_;
  protocol::NodePlace place_;
  os::OomWatch oom_watch_;  // created before the first worker
  os::ForkGuard fork_guard_;
  std::optional<WorkerWatcher> workers_;
  std::unique_ptr<process::Nursery> nursery_;
};

}  // namespace syncrun::detail::master::pool

#pragma once

// The center of the master. It connects the parts of a session and decides when the session is over. The parts are: the
// workers (WorkerPool), the commands (CommandRunner, which uses the CallTable), the messages about failures
// (LossReport), the replacement of lost workers (Recovery), the list of what belongs to the session (Registry), the
// start (session_start.hpp) and the end (session_end.hpp).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/os/shared_heap.hpp"
#include "common/text/log.hpp"
#include "launcher/calls/call_table.hpp"
#include "launcher/calls/row_weights.hpp"
#include "launcher/commands/command_runner.hpp"
#include "launcher/devices/rank_devices.hpp"
#include "launcher/failures/loss_report.hpp"
#include "launcher/pool/worker_pool.hpp"
#include "launcher/profile/profiler.hpp"
#include "launcher/records/registry.hpp"
#include "launcher/records/session_state.hpp"
#include "launcher/session/only_session.hpp"
#include "launcher/session/recovery.hpp"
#include "launcher/settings/settings.hpp"

namespace syncrun::detail {

class SessionCore final : private SessionEnds {
 public:
  /// Makes the pool. It may complete the settings with the devices of other nodes, and keep a reference to them: they
  /// outlive the pool.
  using MakePool = std::function<std::unique_ptr<WorkerPool>(Settings&)>;

  /// Starts the workers and waits until all are ready. Throws Error (usage, system, worker_lost, timeout).
  SessionCore(const SessionOptions& options, const MakePool& make_pool);
  ~SessionCore() override;

  /// Functions of the API hold one while they are inside the session. While it exists, no other thread is inside.
  /// The constructor throws Error (usage) if the session is not open, or if another thread is inside it.
  class Entry {
   public:
    explicit Entry(SessionCore& session);
    ~Entry() { session_.state_.leave(); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    SessionCore& session_;
  };

  const Settings& settings() const noexcept { return settings_; }
  int world_size() const noexcept { return pool_->world_size(); }
  const RankSet& all_ranks() const noexcept { return calls_.all_ranks(); }
  const std::vector<std::string>& devices() const noexcept { return report_->device_names(); }
  const RankDevices& rank_devices() const noexcept { return devices_; }
  bool has_other_nodes() const noexcept { return pool_->other_nodes() != nullptr; }
  /// The number of the node of a rank. 0 is the master's node.
  int node_of(int rank) const noexcept { return calls_.node_of(rank); }
  /// How the rows of the next calls are divided among the ranks.
  const RowWeights& weights() const noexcept { return weights_; }
  void set_weights(RowWeights weights) noexcept { weights_ = std::move(weights); }
  /// The producers on other nodes. Null if there are no other nodes.
  RemoteQueues* other_queues() noexcept { return pool_->other_queues(); }
  /// The pool, for waits that handle what comes from other nodes.
  WorkerPool& pool() noexcept { return *pool_; }
  const Segment& segment() const noexcept { return pool_->segment(); }
  ControlBlock control() const noexcept { return pool_->control(); }
  SharedHeap& heap() noexcept { return heap_; }
  SegmentHeap memory() noexcept { return {pool_->segment(), heap_}; }
  CommandRunner& commands() noexcept { return *commands_; }
  CallTable& calls() noexcept { return calls_; }
  Registry& registry() noexcept { return registry_; }
  const Registry& registry() const noexcept { return registry_; }
  Logger& logger() noexcept { return *logger_; }
  /// Null unless the settings ask for a profile.
  const Profiler* profiler() const noexcept { return profiler_.get(); }

  /// Frees memory of a handle that no longer exists. From any thread. If a thread is inside the session, the memory is
  /// freed at the next entry.
  void give_up(std::uint64_t offset, SharedHeap::Giveback giveback) noexcept;
  /// The same for anything else that a handle has left. `release()` does not wait for workers.
  template <class Release>
  void release(Release&& release) noexcept {
    if (!state_.enter_to_release()) return registry_.release_later(std::forward<Release>(release));
    if (is_open()) release();
    state_.leave_after_release();
  }
  /// Begins to free what belongs to handles that no longer exist.
  void release_memory();

  void check_open() const { state_.check_open(); }
  bool is_open() const noexcept { return state_.is_open(); }
  void close();
  /// Ends the workers without asking them to end. Calls in flight get no results.
  void abandon() noexcept;

 private:
  Recovery::Steps recovery_steps();
  void end_profile() noexcept;
  void end_with_loss(std::uint64_t id) override;
  [[noreturn]] void end_with(const Error& error) override;

  OnlySession only_;  // is released last
  Settings settings_;
  RankDevices devices_;
  std::unique_ptr<Logger> logger_;
  SessionState state_;
  RowWeights weights_;
  std::unique_ptr<WorkerPool> pool_;
  CallTable calls_;
  std::optional<LossReport> report_;
  std::optional<Recovery> recovery_;
  Registry registry_;
  SharedHeap heap_;
  std::unique_ptr<Profiler> profiler_;
  std::optional<Error> profile_failure_;  // the error of writing the profile
  std::optional<CommandRunner> commands_;
  bool is_closing_ = false;  // workers that are lost from now on are not replaced
};

}  // namespace syncrun::detail

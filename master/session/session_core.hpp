#pragma once

// The center of the master. It connects the parts of a session and decides when the session is over. The parts are: the
// workers (WorkerPool), the commands (CommandDispatcher, which uses the CommandTable), the messages about failures
// (FailureReport), the replacement of lost workers (Recovery), the list of what belongs to the session (Registry), the
// start (session_start.hpp) and the end (session_end.hpp).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/os/shared_heap.hpp"
#include "common/protocol/rank_totals.hpp"
#include "common/text/log.hpp"
#include "master/calls/command_table.hpp"
#include "master/calls/node_links.hpp"
#include "master/calls/row_weights.hpp"
#include "master/devices/rank_devices.hpp"
#include "master/dispatch/command_dispatcher.hpp"
#include "master/failures/failure_report.hpp"
#include "master/metrics/exporter.hpp"
#include "master/pool/worker_pool.hpp"
#include "master/profile/profiler.hpp"
#include "master/records/registry.hpp"
#include "master/records/session_state.hpp"
#include "master/session/only_session.hpp"
#include "master/session/recovery.hpp"
#include "master/settings/settings.hpp"

namespace syncrun::detail::master::session {

class QueueProcesses;

class SessionCore final : private dispatch::SessionEnds {
 public:
  /// Makes the pool. It may complete the settings with the devices of other nodes, and keep a reference to them: they
  /// outlive the pool.
  using MakePool = std::function<std::unique_ptr<pool::WorkerPool>(settings::Settings&)>;

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

  const settings::Settings& settings() const noexcept { return settings_; }
  int world_size() const noexcept { return pool_->world_size(); }
  const protocol::RankSet& all_ranks() const noexcept { return calls_.all_ranks(); }
  const std::vector<std::string>& devices() const noexcept { return report_->device_names(); }
  const devices::RankDevices& rank_devices() const noexcept { return devices_; }
  const protocol::NodePlace& place() const noexcept { return pool_->control().place(); }
  /// The number of the node of a rank. 0 is the master's node.
  int node_of(int rank) const noexcept { return calls_.node_of(rank); }
  /// How the rows of the next calls are divided among the ranks.
  const calls::RowWeights& weights() const noexcept { return weights_; }
  void set_weights(calls::RowWeights weights) noexcept { weights_ = std::move(weights); }
  /// The processes of a queue end with the session, if not before.
  void add_queue(const std::shared_ptr<QueueProcesses>& queue);
  /// Folders of checkpoints that other nodes do not see.
  std::set<std::filesystem::path>& unshared_folders() noexcept { return unshared_folders_; }
  /// The pool, for waits that handle what comes from other nodes.
  pool::WorkerPool& pool() noexcept { return *pool_; }
  const os::Segment& segment() const noexcept { return pool_->segment(); }
  protocol::ControlBlock control() const noexcept { return pool_->control(); }
  os::SharedHeap& heap() noexcept { return heap_; }
  pool::SegmentHeap memory() noexcept { return {pool_->segment(), heap_}; }
  dispatch::CommandDispatcher& commands() noexcept { return *commands_; }
  calls::CommandTable& calls() noexcept { return calls_; }
  /// Null if the ranks of different nodes have no connections of their own.
  calls::NodeLinks* node_links() noexcept { return node_links_ ? &*node_links_ : nullptr; }
  records::Registry& registry() noexcept { return registry_; }
  const records::Registry& registry() const noexcept { return registry_; }
  text::Logger& logger() noexcept { return *logger_; }
  /// Null unless the settings ask for a profile.
  const profile::Profiler* profiler() const noexcept { return profiler_.get(); }
  /// One element per rank. Null unless the settings ask for metrics.
  const protocol::RankTotals* totals() const noexcept {
    const std::uint64_t offset = control().header().totals_offset;
    return offset == 0 ? nullptr : segment().at<const protocol::RankTotals>(offset);
  }

  /// Frees memory of a handle that no longer exists. From any thread. If a thread is inside the session, the memory is
  /// freed at the next entry.
  void give_up(std::uint64_t offset, os::SharedHeap::Giveback giveback) noexcept;
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
  template <class Output>
  void end_output(Output* output) noexcept;
  void end_with_loss(std::uint64_t id) override;
  [[noreturn]] void end_with(const Error& error) override;

  OnlySession only_;  // is released last
  settings::Settings settings_;
  devices::RankDevices devices_;
  std::unique_ptr<text::Logger> logger_;
  records::SessionState state_;
  calls::RowWeights weights_;
  std::set<std::filesystem::path> unshared_folders_;
  std::unique_ptr<pool::WorkerPool> pool_;
  calls::CommandTable calls_;
  std::optional<failures::FailureReport> report_;
  records::Registry registry_;
  std::vector<std::weak_ptr<QueueProcesses>> queues_;
  os::SharedHeap heap_;
  std::unique_ptr<profile::Profiler> profiler_;
  std::unique_ptr<metrics::Exporter> exporter_;
  std::optional<Error> output_failure_;  // the error of writing the profile or the metrics
  std::optional<dispatch::CommandDispatcher> commands_;
  std::optional<calls::NodeLinks> node_links_;
  std::optional<Recovery> recovery_;
  bool is_closing_ = false;  // workers that are lost from now on are not replaced
};

}  // namespace syncrun::detail::master::session

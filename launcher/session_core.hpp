#pragma once

// The master's heart: publishes commands, waits for the workers, and turns what they say into results and errors. It puts
// together what others do: the workers (WorkerPool), the commands in flight (CallRing), what is said of failures
// (LossReport), the replacement of lost workers (Recovery), what lives on the session (Registry).

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/device_kinds.hpp"
#include "common/fork_guard.hpp"
#include "common/log.hpp"
#include "common/shared_heap.hpp"
#include "launcher/call_ring.hpp"
#include "launcher/local_pool.hpp"
#include "launcher/loss_report.hpp"
#include "launcher/output_collector.hpp"
#include "launcher/profiler.hpp"
#include "launcher/recovery.hpp"
#include "launcher/registry.hpp"
#include "launcher/settings.hpp"

namespace syncrun::detail {

class SessionCore {
 public:
  /// Starts the workers and waits until all are ready. Throws Error (usage, system, worker_lost, timeout).
  explicit SessionCore(const SessionOptions& options);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  /// Held by every entry from the API: the session is open, and nobody else is in it.
  class Entry {
   public:
    explicit Entry(SessionCore& session);
    ~Entry() { session_.busy_.clear(std::memory_order_release); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    SessionCore& session_;
  };

  // ---- what it is made of
  const Settings& settings() const noexcept { return settings_; }
  int world_size() const noexcept { return pool_->world_size(); }
  const RankSet& all_ranks() const noexcept { return ring_.all_ranks(); }
  const std::vector<std::string>& devices() const noexcept { return report_->device_names(); }
  DeviceKind device_kind(int rank) const noexcept { return settings_.devices[static_cast<std::size_t>(rank)].kind; }
  /// Of all devices of the session, or of those of some ranks.
  DeviceKinds kinds() const noexcept { return kinds_; }
  DeviceKinds kinds_of(const RankSet& ranks) const noexcept;
  const Segment& segment() const noexcept { return pool_->segment(); }
  ControlBlock control() const noexcept { return pool_->control(); }
  SharedHeap& heap() noexcept { return heap_; }
  CallRing& ring() noexcept { return ring_; }
  const CallRing& ring() const noexcept { return ring_; }
  Registry& registry() noexcept { return registry_; }
  const Registry& registry() const noexcept { return registry_; }
  /// Null unless a profile is wanted.
  const Profiler* profiler() const noexcept { return profiler_.get(); }
  /// How many lost workers have been replaced.
  std::uint64_t replacements() const noexcept {
    return control().header().replacements.load(std::memory_order_relaxed);
  }

  // ---- commands: session_calls.cpp
  /// The command to fill in next, for all ranks. Waits until its slot is free.
  Command& next_command();
  /// Lets the workers see it; returns its id.
  std::uint64_t publish();
  /// Waits for all commands up to `id` and deals out their results. Errors of calls go to their results; throws if the
  /// session ends.
  void drain(std::uint64_t id);
  void drain_all() { drain(ring_.last_published()); }
  /// A worker was lost that drain() has not seen to yet.
  bool has_lost_worker() const noexcept { return control().header().lost.load(std::memory_order_seq_cst) != 0; }
  /// Fills in, publishes and waits for a command that is no function call. Throws what failed.
  void run_system(const char* what, const std::string& subject, const std::function<void(Command&, InFlight&)>& fill);
  /// The program has looked whether a call is over, and goes on. Throws Error (timeout), and ends the session, if a call's
  /// limit is used up.
  void count_poll();
  /// A call's limit is used up: ends the session, unless somebody debugs it. Then the limit begins anew.
  void expire(std::uint64_t id);

  // ---- memory
  /// Of a handle that is gone: at once, unless somebody is inside the session.
  void give_up(std::uint64_t offset, SharedHeap::Giveback giveback) noexcept;
  /// Memory on CUDA devices is pinned and stays so when a Data is freed; this gives all that is free to the system.
  void give_back_pages();
  /// Memory of the heap; that which GPUs have pinned is given back only when it is missed. Throws Error (system).
  std::uint64_t allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what);

  // ---- the end: session_ends.cpp
  /// Throws Error (usage) unless the session is open, with what ended it.
  void check_open() const;
  bool is_open() const noexcept { return state_ == State::open && fork_guard_.is_here(); }
  void close();
  void abandon() noexcept;

 private:
  enum class State : std::uint8_t { starting, open, closed };

  void start();
  void await_ready();
  void announce() const;
  void begin_profile();
  void end_profile() noexcept;
  Recovery::Steps recovery_steps();
  void await_passed(std::uint64_t id);
  void collect(std::uint64_t id);
  std::exception_ptr failure_of(std::uint64_t id);
  /// Ends the session because of a lost worker, unless that can be replaced.
  void end_with_loss(std::uint64_t id);
  [[noreturn]] void end_with(const Error& error);
  [[noreturn]] void end_with_lost_device(const std::exception_ptr& cause);
  void await_peers_release(int lost) const;
  bool await_ends_at_close();
  std::optional<Error> failure_at_close();

  Settings settings_;
  DeviceKinds kinds_;
  std::unique_ptr<Logger> logger_;
  ForkGuard fork_guard_;
  std::unique_ptr<LocalPool> pool_;
  CallRing ring_;
  std::optional<LossReport> report_;
  std::optional<Recovery> recovery_;
  Registry registry_;
  SharedHeap heap_;
  OutputCollector outputs_;
  std::unique_ptr<Profiler> profiler_;
  std::optional<Error> profile_failure_;  // it could not be written
  WaitPolicy policy_;

  std::atomic<State> state_ = State::starting;
  std::optional<Error> end_cause_;
  std::atomic_flag busy_;
  bool is_closing_ = false;  // whom it loses now is not replaced
};

}  // namespace syncrun::detail

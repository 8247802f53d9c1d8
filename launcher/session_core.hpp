#pragma once

// The master's heart: publishes commands, waits for the workers, and turns what they say into results and errors.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/control_block.hpp"
#include "common/device_kinds.hpp"
#include "common/fork_guard.hpp"
#include "common/log.hpp"
#include "common/oom_watch.hpp"
#include "common/segment.hpp"
#include "common/shared_heap.hpp"
#include "common/supervisor_link.hpp"
#include "launcher/call_clocks.hpp"
#include "launcher/child_end.hpp"
#include "launcher/heartbeats.hpp"
#include "launcher/nursery.hpp"
#include "launcher/profiler.hpp"
#include "launcher/records.hpp"
#include "launcher/settings.hpp"
#include "launcher/variable_names.hpp"
#include "launcher/worker_brood.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

/// What lives on a session and has processes of its own: ends with it.
class SessionDependant {
 public:
  virtual ~SessionDependant() = default;
  virtual void end_with_session() noexcept = 0;
};

class SessionCore {
 public:
  /// Starts the workers and waits until all are ready. Throws Error (usage, system, worker_lost, timeout).
  explicit SessionCore(const SessionOptions& options);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  /// What a command in flight keeps alive and where its result goes.
  struct InFlight {
    CallResult* result = nullptr;
    std::shared_ptr<CallResult> kept_result;  // of a future
    std::shared_ptr<FunctionRecord> function;
    std::array<std::shared_ptr<void>, kMaxArguments> arguments;
    std::size_t arguments_count = 0;
    std::vector<std::uint64_t> temporaries;  // in the heap: index lists, large values
    const char* what = "";                   // of commands that are no function calls: "all_reduce", ...
    std::string subject;                     // their variable
    std::vector<std::string> writes;         // variables that they write to
    void reset() noexcept;
  };

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

  int world_size() const noexcept { return control_.world_size(); }
  /// How many lost workers have been replaced.
  std::uint64_t replacements() const noexcept { return control_.header().replacements.load(std::memory_order_relaxed); }
  const std::vector<std::string>& devices() const noexcept { return device_names_; }
  const RankSet& all_ranks() const noexcept { return all_ranks_; }
  DeviceKind device_kind(int rank) const noexcept { return settings_.devices[static_cast<std::size_t>(rank)].kind; }
  /// Of all devices of the session, or of those of some ranks.
  DeviceKinds kinds() const noexcept { return kinds_; }
  DeviceKinds kinds_of(const RankSet& ranks) const noexcept;
  const Segment& segment() const noexcept { return segment_; }
  SharedHeap& heap() noexcept { return heap_; }
  Nursery& nursery() noexcept { return *nursery_; }
  ControlBlock control() const noexcept { return control_; }
  const Settings& settings() const noexcept { return settings_; }
  /// Null unless a profile is wanted.
  const Profiler* profiler() const noexcept { return profiler_.get(); }

  /// The command to fill in next, for all ranks, and its bookkeeping. Waits for the oldest one if the ring is full.
  Command& next_command();
  InFlight& next_in_flight() noexcept { return in_flight_[next_id_ % kRingSize]; }
  /// Lets the workers see the command that was filled in; returns its id.
  std::uint64_t publish();
  /// Waits for all commands up to `id` and deals out their results. Errors of calls go to their results; throws if the
  /// session ends.
  void drain(std::uint64_t id);
  void drain_all() { drain(next_id_ - 1); }
  std::uint64_t last_drained() const noexcept { return drained_; }
  std::uint64_t last_published() const noexcept { return next_id_ - 1; }
  /// Its ranks are done with the oldest command in flight.
  bool is_head_over() const;
  /// A worker was lost that drain() has not seen to yet.
  bool has_lost_worker() const noexcept { return control_.header().lost.load(std::memory_order_seq_cst) != 0; }
  /// The program has looked whether a call is over, and goes on. Throws Error (timeout), and ends the session, if a call's
  /// limit is used up.
  void count_poll();

  /// The limit of a wait of the master's: those of the calls in flight, whose clocks run meanwhile (see CallClocks).
  class CallLimits {
   public:
    explicit CallLimits(SessionCore& session) noexcept;
    bool is_over(Clock::time_point now);
    Clock::duration nap(Clock::duration longest) const noexcept;
    /// The wait is over: its last part counts, too.
    void end();
    /// After is_over(): the call whose limit is used up.
    const std::optional<std::uint64_t>& expired() const noexcept { return expired_; }

   private:
    SessionCore& session_;
    WaitedTime waited_;
    std::optional<std::uint64_t> expired_;
  };
  /// A call's limit is used up: ends the session, unless somebody debugs it. Then the limit begins anew.
  void expire(std::uint64_t id);

  /// Fills in, publishes and waits for a command that is no function call. Throws what failed.
  void run_system(const char* what, const std::string& subject, const std::function<void(Command&, InFlight&)>& fill);

  /// Shared variables by the names they were given.
  VariableNames& variable_names() noexcept { return variable_names_; }
  const VariableNames& variable_names() const noexcept { return variable_names_; }

  /// Throws Error (usage) unless the session is open, with what ended it.
  void check_open() const;
  bool is_open() const noexcept { return state_ == State::open && fork_guard_.is_here(); }
  std::uint64_t new_id() noexcept { return ++last_object_id_; }

  /// Memory in the heap, and objects on workers, of handles that are gone: dealt with at the next entry.
  void release_later(std::function<void()> release) noexcept;
  /// Memory in the heap of a handle that is gone: at once, unless somebody is inside the session.
  void give_up(std::uint64_t offset, SharedHeap::Giveback giveback) noexcept;
  /// Memory on CUDA devices is pinned and stays so when a Data is freed; this gives all that is free to the system.
  void give_back_pages();
  /// Memory of the heap; that which GPUs have pinned is given back only when it is missed. Throws Error (system).
  std::uint64_t allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what);
  /// What a new worker has to be given again.
  void add_variable(const std::shared_ptr<VariableRecord>& variable);
  void forget_variable(std::uint64_t entry) noexcept { variables_.erase(entry); }
  void add_object(const std::shared_ptr<ObjectRecord>& object);
  void add_dependant(const std::shared_ptr<SessionDependant>& dependant);
  void run_releases();
  /// A failure has reached the program: it need not surface again where a dropped future had it first.
  void has_surfaced(const std::exception_ptr& failure) noexcept {
    if (dropped_failure_ == failure) dropped_failure_ = nullptr;
  }

  void close();
  void abandon() noexcept;

 private:
  enum class State : std::uint8_t { starting, open, closed };

  void prepare_control(std::size_t control_bytes);
  void await_ready();
  void announce() const;
  void begin_profile();
  void end_profile() noexcept;
  [[noreturn]] void fail_start(int rank);
  std::optional<std::uint64_t> count_waited(Clock::duration waited);
  void await_passed(std::uint64_t id);
  void collect(std::uint64_t id);
  bool has_lost_device(std::uint64_t id) const noexcept;
  [[noreturn]] void end_with_lost_device(const std::exception_ptr& cause);
  void collect_outputs(std::uint64_t id, const Command& command, CallResult& result);
  std::exception_ptr failure_of(std::uint64_t id);
  void await_peers_release(int lost) const;
  /// Shared variables that the commands in flight from here on may have half written.
  std::vector<std::string> half_written_since(std::uint64_t id) const;
  /// Ends the session because of a lost worker, unless that can be replaced; or of a deadline.
  void end_with_loss(std::uint64_t id);
  [[noreturn]] void end_with_timeout(std::uint64_t id, Milliseconds limit);
  [[noreturn]] void end_with_ring_held(std::uint64_t id);
  [[noreturn]] void end_at_deadline(std::vector<RankState> states, const std::string& call, const std::string& what);
  [[noreturn]] void fail_late_start();
  bool await_ends_at_close();
  /// Where every rank is; `id` is the command that the master waits for.
  std::vector<RankState> rank_states(std::uint64_t id);
  [[noreturn]] void end_with(const Error& error);
  // SessionOptions::on_worker_lost = respawn; see recovery.cpp.
  struct Stranded {
    CallResult* result;
    std::shared_ptr<CallResult> kept;
    bool is_dropped;
  };
  bool may_replace() const noexcept;
  /// The calls in flight have failed when it returns. Throws where the session ends.
  void replace_lost(Failure failure, const std::string& where, int status, Milliseconds limit);
  void check_respawns(int more) const;
  void await_survivors(Milliseconds limit);
  std::vector<int> lost_ranks() const;
  void collect_whole_calls();
  std::vector<Stranded> strand_calls();
  void clear_slot(int rank);
  void bear_anew(const std::vector<int>& ranks);
  void pass_on(const std::vector<int>& ranks, Failure& failure);
  bool pass_on(VariableRecord& variable, const std::vector<int>& ranks, int heir);
  std::string call_name(std::uint64_t id) const;
  std::string describe_rank(int rank) const;
  /// ", stopped by SIGSTOP (...)" if it stands still.
  bool is_behind(int rank, std::uint64_t id) const;
  std::string phase_name(int rank) const;
  std::string cause_of(int rank, const ChildEnd& end) const;
  /// Who it is: rank, process and device.
  Failure blame(int rank) const;
  ChildEnd await_cause(int rank) const;
  Error lost_error(Failure failure, const std::string& where, std::optional<int> wait_status) const;
  static Error lost_error(const std::string& who, Failure failure, const std::string& where, int wait_status,
                          const std::string& report);
  Failure describe_loss(int rank, const ChildEnd& end) const;

  Settings settings_;
  OomWatch oom_watch_;  // from before the first worker
  RankSet all_ranks_;
  DeviceKinds kinds_;
  std::vector<std::string> device_names_;
  std::unique_ptr<Logger> logger_;
  Segment segment_;
  ControlBlock control_;
  SharedHeap heap_;
  WaitPolicy policy_;
  Heartbeats heartbeats_;
  std::optional<WorkerBrood> workers_;
  std::unique_ptr<Nursery> nursery_;
  std::unique_ptr<Profiler> profiler_;
  std::optional<Error> profile_failure_;  // it could not be written

  std::atomic<State> state_ = State::starting;
  std::optional<Error> end_cause_;
  std::atomic_flag busy_;
  std::uint64_t next_id_ = 1;
  std::uint64_t drained_ = 0;
  std::uint64_t passed_ = 0;  // every rank is known to have passed the commands up to here: their slots are free
  std::uint64_t acknowledged_failure_ = 0;
  std::exception_ptr last_failure_;
  std::exception_ptr dropped_failure_;
  CallClocks clocks_{0};
  std::uint64_t last_object_id_ = 0;
  std::array<InFlight, kRingSize> in_flight_;
  std::mutex releases_mutex_;  // handles may go in any thread
  std::deque<std::function<void()>> releases_;
  std::atomic<bool> has_releases_{false};
  ForkGuard fork_guard_;
  VariableNames variable_names_;
  std::vector<std::weak_ptr<SessionDependant>> dependants_;
  std::map<std::uint64_t, std::weak_ptr<VariableRecord>> variables_;  // by entry; some wait to be freed
  std::map<std::uint64_t, std::weak_ptr<ObjectRecord>> objects_;      // by id
  int respawns_ = 0;
  bool is_closing_ = false;  // or being put together again: whom it loses now is not replaced

  // Reused for every call.
  std::vector<int> ranks_;
  std::vector<const void*> sources_;
  std::vector<double> weights_;

  friend void wait_all(SessionCore& session);
};
}  // namespace syncrun::detail

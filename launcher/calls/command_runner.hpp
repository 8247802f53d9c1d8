#pragma once

// Publishes commands, waits for the workers, and makes results and errors from what the workers report.
//
//   next_command --> (filled in) --> publish --> drain: waits for its ranks, then hands out its result

#include <cstdint>
#include <exception>
#include <string>

#include "common/os/wait.hpp"
#include "launcher/calls/call_ring.hpp"
#include "launcher/calls/output_collector.hpp"
#include "launcher/calls/system_commands.hpp"
#include "launcher/failures/loss_report.hpp"
#include "launcher/pool/worker_pool.hpp"
#include "launcher/profile/profiler.hpp"
#include "launcher/session/session_state.hpp"

namespace syncrun::detail {

/// Called when a command shows that a worker was lost, or that the session is over.
class SessionEnds {
 public:
  SessionEnds() = default;
  virtual ~SessionEnds() = default;
  SessionEnds(const SessionEnds&) = delete;
  SessionEnds& operator=(const SessionEnds&) = delete;
  /// A worker was lost while the master waited for command `id`. Returns if the worker was replaced, and then nothing
  /// is in flight. Otherwise throws Error.
  virtual void end_with_loss(std::uint64_t id) = 0;
  /// Fails everything in flight with `error`, and throws it.
  [[noreturn]] virtual void end_with(const Error& error) = 0;
};

class CommandRunner final : public SystemCommands {
 public:
  /// The runner refers to all of them for as long as it lives.
  struct Parts {
    WorkerPool& pool;
    CallRing& ring;
    LossReport& report;
    SegmentHeap memory;
    const RankDevices& devices;
    const SessionState& state;
    SessionEnds& ends;
    Profiler* profiler;  // null unless there is a profile
    Milliseconds call_timeout;
  };
  explicit CommandRunner(const Parts& parts);

  /// The command to fill in next, for all ranks. Waits until its slot is free.
  CommandHead& next_command();
  /// Makes the command visible to the workers. Returns its id.
  std::uint64_t publish();
  /// Waits for all commands up to `id` and hands out their results. Errors of calls go to their results. Throws if the
  /// session ends.
  void drain(std::uint64_t id);
  void drain_all() override { drain(ring_.last_published()); }
  void run_system(const char* what, const std::string& subject, const Fill& fill) override;
  bool is_open() const noexcept override { return state_.is_open(); }
  /// Hands out the result of the oldest command, which is complete.
  void collect(std::uint64_t id);

  /// True if a worker was lost and drain() has not dealt with it yet.
  bool has_lost_worker() const noexcept { return control_.header().lost.load(std::memory_order_seq_cst) != 0; }
  /// How often lost workers have been replaced. One replacement may replace several workers.
  std::uint64_t replacements() const noexcept { return control_.header().replacements.load(std::memory_order_relaxed); }

  /// The program has checked whether a call is over, and continues. If the limit of a call is used up, ends the session
  /// and throws Error (timeout).
  void count_poll();
  /// The limit of a call is used up. Ends the session. If a debugger is attached, restarts the clock of the call
  /// instead.
  void expire(std::uint64_t id);

 private:
  void await_passed(std::uint64_t id);
  std::exception_ptr failure_of(std::uint64_t id);

  ControlBlock control_;
  WorkerPool& pool_;
  CallRing& ring_;
  LossReport& report_;
  const SessionState& state_;
  SessionEnds& ends_;
  Profiler* profiler_;
  Milliseconds call_timeout_;
  WaitPolicy policy_;
  OutputCollector outputs_;
};

}  // namespace syncrun::detail

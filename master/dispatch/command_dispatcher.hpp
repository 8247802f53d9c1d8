#pragma once

// Publishes commands, waits for the workers, and makes results and errors from what the workers report.
//
//   next_command --> (filled in) --> publish --> await: waits for its ranks, then hands out its result

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/os/wait.hpp"
#include "master/calls/command_table.hpp"
#include "master/calls/system_commands.hpp"
#include "master/dispatch/output_collector.hpp"
#include "master/failures/failure_report.hpp"
#include "master/pool/worker_pool.hpp"
#include "master/profile/profiler.hpp"
#include "master/records/session_state.hpp"

namespace syncrun::detail::master::dispatch {

class CallLimits;

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

class CommandDispatcher final : public calls::SystemCommands {
 public:
  /// The dispatcher refers to all of them for as long as it lives.
  struct Parts {
    pool::WorkerPool& pool;
    calls::CommandTable& calls;
    failures::FailureReport& report;
    pool::SegmentHeap memory;
    const devices::RankDevices& devices;
    const records::SessionState& state;
    SessionEnds& ends;
    profile::Profiler* profiler;  // null unless there is a profile
    os::Milliseconds call_timeout;
  };
  explicit CommandDispatcher(const Parts& parts);

  /// The command to fill in next. Waits as make_room() does.
  protocol::CommandHead& next_command(const protocol::RankSet& ranks);
  bool make_room(const protocol::RankSet& ranks) override;
  /// A pause in the writing of the next command. During the pause, other commands can be run. At the end, there must be
  /// room for the next command.
  class Pause {
   public:
    explicit Pause(CommandDispatcher& commands);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    /// The writing continues.
    void end() noexcept;

   private:
    CommandDispatcher& commands_;
    calls::CommandTable::Aside aside_;
    bool is_over_ = false;
  };
  /// The command is not published after all. Frees and forgets what was prepared for it.
  void discard_next() noexcept;
  /// Makes the command visible to the workers. Returns its id.
  std::uint64_t publish();
  void await(std::uint64_t id) override;
  /// Waits until one of the calls has its result, and returns its position: the first one if several have. Skips nulls.
  /// At least one is not null.
  std::size_t await_any(std::span<CallResult* const> results);
  /// Hands out the results of all commands that are complete.
  void collect_complete();
  /// Whether a complete call that was not collected holds much memory, because it has made large Values. The program may
  /// have dropped them. Each entry into the session asks, so each call is looked at once, in order.
  bool holds_large_values() { return calls_.has_makers() && has_made_large_values(); }
  void drain_all() override;
  void await_users(const void* record) override;
  void run_system(const records::Room& room, const char* what, const std::string& subject, const Fill& fill) override;
  std::uint64_t launch_system(const records::Room& room, const char* what, const std::string& subject,
                              const Fill& fill) override;
  bool is_open() const noexcept override { return state_.is_open(); }
  /// Hands out the result of a command that can be collected.
  void collect(std::uint64_t id);

  /// True if a worker was lost and await() has not dealt with it yet.
  bool has_lost_worker() const noexcept { return control_.header().lost.load(std::memory_order_seq_cst) != 0; }

  /// If a node is lost, ends the session and throws the error about it. For waits in which no command is in flight.
  void check_nodes();
  /// The program has checked whether a call is over, and continues. If the limit of a call is used up, ends the session
  /// and throws Error (timeout).
  void count_poll();
  /// The limit of a call is used up. Ends the session. If a debugger is attached, restarts the clock of the call
  /// instead.
  void expire(std::uint64_t id);

 private:
  bool has_made_large_values();
  void note_spoiled();
  template <class Ready>
  os::Woken wait(CallLimits& limits, Ready&& ready);
  bool is_lost(std::uint64_t id) const noexcept;
  std::optional<std::size_t> first_over(std::span<CallResult* const> results) const;
  void fill_in(const records::Room& room, const char* what, const std::string& subject, const Fill& fill);
  void end_with_loss(std::uint64_t id);
  void write_dependencies();
  std::vector<std::string> waited_for(const calls::InFlight& next) const;
  std::optional<std::size_t> moved_bytes(const calls::InFlight& command) const;
  std::shared_ptr<records::CallFailure> note_failure(std::uint64_t id, const std::exception_ptr& error);
  std::exception_ptr failure_of(std::uint64_t id);
  void fetch_outputs(const protocol::Command& command, calls::InFlight& call);
  void collect_failure(std::uint64_t id, const std::exception_ptr& error);
  void retire(std::uint64_t id, const std::shared_ptr<records::CallFailure>& failure);

  protocol::ControlBlock control_;
  pool::WorkerPool& pool_;
  calls::CommandTable& calls_;
  failures::FailureReport& report_;
  const records::SessionState& state_;
  SessionEnds& ends_;
  profile::Profiler* profiler_;
  os::Milliseconds call_timeout_;
  os::WaitPolicy policy_;
  OutputCollector outputs_;
  std::uint64_t looked_at_ = 0;  // the last call that holds_large_values() has looked at
};

}  // namespace syncrun::detail::master::dispatch

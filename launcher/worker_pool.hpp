#pragma once

// The workers of a session, as all above them see them: where they are met, and what becomes of their processes.

#include <optional>
#include <string>
#include <vector>

#include "common/control_block.hpp"
#include "common/wait.hpp"
#include "launcher/child_end.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

/// One implementation starts processes on this machine (LocalPool); one for tests has none (tests/launcher/fake_pool.hpp).
///
/// Calls use the control block alone, which is plain memory of this process. The rest is virtual: nothing of it is on the
/// way of a call that goes well.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  const ControlBlock& control() const noexcept { return control_; }
  int world_size() const noexcept { return control_.world_size(); }

  /// Starts all workers. Throws Error (system, timeout) if one cannot be started.
  virtual void start() = 0;
  /// From when all are ready: a death is noted in the control block (ControlHeader::lost, WorkerSlot::is_lost), and wakes
  /// who waits there.
  virtual void watch() = 0;
  /// From now on a worker that ends is not a loss.
  virtual void expect_ends() noexcept = 0;
  virtual void kill_all() noexcept = 0;
  /// Ends what is left. Nothing is asked of the workers afterwards.
  virtual void end() noexcept = 0;

  virtual int pid(int rank) const noexcept = 0;
  /// How a worker ended that is known to be dead, or about to die; waits until that is known, for 5 s at most.
  virtual ChildEnd await_end(int rank) = 0;
  /// Its wait status if it has ended and that is known.
  virtual std::optional<int> end_status(int rank) = 0;
  /// False if not all have ended within the limit.
  virtual bool await_all_ends(Milliseconds limit) = 0;
  /// The signal that a worker stands still by, or 0.
  virtual int stop_signal(int rank) const = 0;
  /// The process that traces it, or 0.
  virtual int tracer(int rank) const = 0;
  /// Adds the native stacks of those that seem stuck (launcher/rank_report.hpp). Bounded.
  virtual void take_stacks(std::vector<RankState>& states) = 0;
  /// The last lines of its standard error.
  virtual std::vector<std::string> last_stderr(int rank) = 0;
  /// What may be behind a SIGKILL: ", the machine ran out of memory". Empty: nothing is known.
  virtual std::string describe_kill() const = 0;
  /// Why nothing is known of the workers any more; they are dead then.
  virtual std::optional<Error> blindness() const = 0;
  /// A debugger has one of them, or this process: deadlines do not count.
  virtual bool is_debugged() const = 0;
  /// For how long this process has not been stopped (see AwakeTime).
  virtual Clock::duration awake_time(Clock::time_point now) noexcept = 0;

  /// Of a lost worker: waits for its end; then nobody watches it any more, and its slot can be made anew. False if it
  /// does not end.
  virtual bool bury(int rank) = 0;
  /// Starts workers in the places of buried ones, whose losses are forgotten. Throws as start() does.
  virtual void replace(const std::vector<int>& ranks) = 0;
  /// As watch(), for one that has been replaced.
  virtual void watch(int rank) = 0;

 protected:
  WorkerPool() = default;
  void set_control(ControlBlock control) noexcept { control_ = control; }

 private:
  ControlBlock control_;
};

}  // namespace syncrun::detail

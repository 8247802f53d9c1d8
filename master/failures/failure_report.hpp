#pragma once

// Writes the messages about workers that fail, are late or are lost: which rank, where, why, and what to do. It does
// not end any process or the session.

#include <string>
#include <vector>

#include "master/calls/command_table.hpp"
#include "master/pool/heartbeats.hpp"
#include "master/pool/worker_pool.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::failures {

class FailureReport {
 public:
  /// `device_names` has the name of each rank's device. Refers to the first two arguments for as long as it lives.
  FailureReport(pool::WorkerPool& pool, const calls::CommandTable& calls, std::vector<std::string> device_names);

  const std::vector<std::string>& device_names() const noexcept { return device_names_; }
  /// "rank 1 (cpu1, pid 77)".
  std::string describe_rank(int rank) const;
  /// Returns a Failure with the rank, process and device filled in.
  Failure blame(int rank) const;

  /// Called about every 100 ms in a long wait, so that messages about deadlines can say how long each rank has made no
  /// progress.
  void look(os::Clock::time_point now) { heartbeats_.look(pool_.control(), now); }

  /// The error of a call in which this rank was the first to fail by itself.
  Error failed_call(std::uint64_t id, int rank) const;
  /// The error of a call that was abandoned without any rank having reported a cause.
  Error abandoned_call(std::uint64_t id) const;

  /// Returns a Failure with the rank, its phase, the cause of its end, its last lines, and its stack if it has crashed.
  Failure describe_loss(int rank, const process::ChildEnd& end) const;
  /// Returns in words where a lost rank was. If it was in a command in flight, also writes that into the failure.
  std::string place_loss(Failure& failure) const;
  /// The error about a lost rank. `more` says what was done about it.
  Error lost(Failure failure, const std::string& where, int wait_status, std::string more = {}) const;

  /// The state of every rank while the master waits for command `id`.
  std::vector<RankState> rank_states(std::uint64_t id);
  /// The error of command `id`, which did not finish in time.
  Error late_call(std::uint64_t id);
  Error failed_start(int rank, const process::ChildEnd& end) const;
  Error late_start(os::Milliseconds limit);

 private:
  std::string cause_of(int rank, const process::ChildEnd& end) const;
  std::string phase_of_rank(int rank) const;
  bool takes_part(int rank, std::uint64_t id) const;
  bool is_behind(int rank, std::uint64_t id) const;
  Error late(os::Clock::time_point released, std::vector<RankState> states, int culprit, const std::string& call,
             const std::string& what);

  pool::WorkerPool& pool_;
  const calls::CommandTable& calls_;
  std::vector<std::string> device_names_;
  pool::Heartbeats heartbeats_;
};

}  // namespace syncrun::detail::master::failures

#pragma once

// What is said about workers that fail, are late or are lost: who, where, why, and what to do. Words only: nothing here ends
// anything.

#include <string>
#include <vector>

#include "launcher/call_ring.hpp"
#include "launcher/heartbeats.hpp"
#include "launcher/worker_pool.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

class LossReport {
 public:
  /// `device_names`: of each rank. Refers to the first two as long as it lives.
  LossReport(WorkerPool& pool, const CallRing& ring, std::vector<std::string> device_names);

  const std::vector<std::string>& device_names() const noexcept { return device_names_; }
  /// "rank 1 (cpu1, pid 77)".
  std::string describe_rank(int rank) const;
  /// Who it is: rank, process and device.
  Failure blame(int rank) const;

  /// To be called now and then in a long wait: deadlines tell who has stood still since when.
  void look(Clock::time_point now) { heartbeats_.look(pool_.control(), now); }

  /// A call in which this rank failed by itself, first.
  Error failed_call(std::uint64_t id, int rank) const;
  /// A call that was given up, and no rank says why.
  Error abandoned_call(std::uint64_t id) const;

  /// Who it is, its phase, its cause and its last lines.
  Failure describe_loss(int rank, const ChildEnd& end) const;
  /// Whether a lost rank was in one of the commands from `id` on; then that is in the failure as well. Returns where that is,
  /// in words.
  std::string place_loss(Failure& failure, std::uint64_t id) const;
  /// The error about a lost rank; `more`: what was done about it.
  Error lost(Failure failure, const std::string& where, int wait_status, std::string more = {}) const;

  /// Where every rank is, while the master waits for a command.
  std::vector<RankState> rank_states(std::uint64_t id);
  /// Command `id` was not over in time.
  Error late_call(std::uint64_t id);
  /// A rank that takes no part in command `id` did not pass it in time: it stands still, since it has nothing else to do.
  Error late_passing(std::uint64_t id, Milliseconds limit);
  Error failed_start(int rank, const ChildEnd& end) const;
  Error late_start(Milliseconds limit);

 private:
  std::string cause_of(int rank, const ChildEnd& end) const;
  std::string phase_of_rank(int rank) const;
  bool is_behind(int rank, std::uint64_t id) const;
  Error late(Clock::time_point released, std::vector<RankState> states, int culprit, const std::string& call,
             const std::string& what);

  WorkerPool& pool_;
  const CallRing& ring_;
  std::vector<std::string> device_names_;
  Heartbeats heartbeats_;
};

}  // namespace syncrun::detail

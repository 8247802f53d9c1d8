#pragma once

// The replacement of lost workers, if SessionOptions::on_worker_lost is respawn. The calls in flight fail. A new worker
// takes the rank of each lost one, and gets those of its values that can be restored.
//
//   a loss is seen --> every survivor is done with what was published (it fails there) --> the lost workers are reaped
//     --> their slots are cleared, the loss is forgotten --> new workers are started, and ready
//     --> variables from a peer, objects by their constructors --> the calls get their error; the session is open
//
// If any step fails, for example because another worker is lost, the session ends with the first loss as its cause.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/text/log.hpp"
#include "master/calls/command_table.hpp"
#include "master/dispatch/command_dispatcher.hpp"
#include "master/failures/failure_report.hpp"
#include "master/pool/worker_pool.hpp"
#include "master/records/registry.hpp"

namespace syncrun::detail::master::session {

class Recovery {
 public:
  /// What a replacement uses. All of it outlives the object.
  struct Parts {
    pool::WorkerPool& pool;
    calls::CommandTable& calls;
    failures::FailureReport& report;
    dispatch::CommandDispatcher& commands;
    const records::Registry& registry;
    text::Logger& logger;
    os::Milliseconds start_timeout;  ///< The time that the new workers have to be ready.
  };

  /// `most`: how many workers may be replaced in all.
  Recovery(const Parts& parts, int most) : parts_(parts), most_(most) {}

  /// True during a replacement, and after one that failed. Workers that are lost then are not replaced.
  bool is_running() const noexcept { return is_running_; }
  /// Replaces the lost workers. When it returns, the calls in flight have failed. `limit` is the time that survivors
  /// have to finish their calls. Throws Error (worker_lost) if a worker cannot be replaced. The calls in flight then
  /// have that error.
  void replace_lost(Failure failure, const std::string& where, int wait_status, os::Milliseconds limit);

 private:
  void check_count(int more) const;
  void await_survivors(os::Milliseconds limit);
  std::vector<int> reap_lost();
  void collect_whole_calls();
  std::optional<std::uint64_t> first_whole_call() const;
  std::vector<pool::Successor> prepare_successors(const std::vector<int>& lost);
  void start_successors(const std::vector<int>& lost);

  Parts parts_;
  int most_;
  int replaced_ = 0;
  bool is_running_ = false;
};

}  // namespace syncrun::detail::master::session

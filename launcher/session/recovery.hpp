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
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/calls/call_table.hpp"
#include "launcher/failures/loss_report.hpp"
#include "launcher/pool/worker_pool.hpp"

namespace syncrun::detail {

class Recovery {
 public:
  /// The steps that the session does.
  struct Steps {
    std::function<void(std::uint64_t id)> collect;             ///< Hands out the result of a complete call.
    std::function<void(std::uint64_t offset)> free;            ///< Frees memory of the heap that a call in flight used.
    std::function<void(int rank)> forget_copies;               ///< Notes that the rank has no copy of any variable.
    std::function<void(const std::vector<int>&)> await_ready;  ///< Waits until the new workers are ready.
    /// Gives new workers the values that the lost ones had. Adds to the failure what was restored and what is
    /// undefined.
    std::function<void(const std::vector<int>&, Failure&)> pass_on;
  };

  /// Refers to the first three arguments for as long as it lives. `most`: how many workers may be replaced in all.
  Recovery(WorkerPool& pool, CallTable& calls, const LossReport& report, Steps steps, int most);

  /// True during a replacement, and after one that failed. Workers that are lost then are not replaced.
  bool is_running() const noexcept { return is_running_; }
  /// Replaces the lost workers. When it returns, the calls in flight have failed. `limit` is the time that survivors
  /// have to finish their calls. Throws Error (worker_lost) if a worker cannot be replaced. The calls in flight then
  /// have that error.
  void replace_lost(Failure failure, const std::string& where, int wait_status, Milliseconds limit);

 private:
  void check_count(int more) const;
  void await_survivors(Milliseconds limit);
  std::vector<int> reap_lost();
  void collect_whole_calls();
  std::optional<std::uint64_t> first_whole_call() const;
  std::vector<Successor> prepare_successors(const std::vector<int>& lost);

  WorkerPool& pool_;
  CallTable& calls_;
  const LossReport& report_;
  Steps steps_;
  int most_;
  int replaced_ = 0;
  bool is_running_ = false;
};

}  // namespace syncrun::detail

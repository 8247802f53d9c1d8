#pragma once

// SessionOptions::on_worker_lost = respawn: the calls in flight fail, a new worker takes the rank of the lost one, and
// gets of what that had what can be had again.
//
//   a loss is seen --> every survivor is done with what was published (it fails there) --> the lost are buried
//     --> their slots are cleared, the loss is forgotten --> new workers are born, and ready
//     --> variables from a peer, objects by their constructors --> the calls' error is there; the session is open
//
// Whatever goes wrong on the way, another loss included, ends the session with the first loss for its cause.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/call_ring.hpp"
#include "launcher/loss_report.hpp"
#include "launcher/worker_pool.hpp"

namespace syncrun::detail {

class Recovery {
 public:
  /// What the session does on the way.
  struct Steps {
    std::function<void(std::uint64_t id)> collect;         ///< Deals out the result of a call that was complete.
    std::function<void(std::uint64_t offset)> free;        ///< Memory of the heap that a call in flight had.
    std::function<void(int rank)> forget_copies;           ///< The rank has no copy of any variable.
    std::function<void(const std::vector<int>&)> welcome;  ///< Waits until the new workers are ready.
    /// Gives new workers what the lost ones had; says in the failure what was restored, and what is undefined.
    std::function<void(const std::vector<int>&, Failure&)> pass_on;
  };

  /// Refers to the first three as long as it lives. `most`: how many workers may be replaced in all.
  Recovery(WorkerPool& pool, CallRing& ring, const LossReport& report, Steps steps, int most);

  /// Under way: whom it loses now is not replaced.
  bool is_running() const noexcept { return is_running_; }
  /// The calls in flight have failed when it returns, and the lost have successors. `limit`: for survivors to come to the end
  /// of their calls. Throws Error (worker_lost) where somebody cannot be replaced; the calls in flight have that error.
  void replace_lost(Failure failure, const std::string& where, int wait_status, Milliseconds limit);

 private:
  void check_count(int more) const;
  void await_survivors(Milliseconds limit);
  std::vector<int> bury_lost();
  void collect_whole_calls();
  void clear_slot(int rank);
  void forget_comms() noexcept;

  WorkerPool& pool_;
  CallRing& ring_;
  const LossReport& report_;
  Steps steps_;
  int most_;
  int replaced_ = 0;
  bool is_running_ = false;
};

}  // namespace syncrun::detail

#pragma once

// VerifiedCall: a call as Session::verify makes it several times. StateKeeper: what it puts back on workers. Users never
// name anything in this header.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/worker_interface.hpp"

namespace syncrun::detail {

/// What a worker does with the state that calls can change beside variables: random generators, and the buffers of
/// modules. `restore_buffers` leaves the random generators as they are.
enum class StateAction : std::uint8_t { keep, restore, restore_buffers, drop, describe };

/// What a call uses.
struct VerifiedParts {
  std::shared_ptr<FunctionRecord> function{};
  std::vector<std::shared_ptr<VariableRecord>> updates{};  // what it writes through an Update
  std::vector<std::shared_ptr<VariableRecord>> written{};  // what else it may write: by a Local
  std::vector<std::shared_ptr<VariableRecord>> own{};      // of a train step: what the step itself writes
  std::shared_ptr<VariableRecord> gradient{};              // of a train step, else null
  std::shared_ptr<VariableRecord> clipping{};              // the StepPlan, if it clips the gradient, else null
  const OutputChoice* choice = nullptr;                    // the outputs that the program wants; null means all
  bool is_sharded = false;                                 // each rank has its share of the gradient
  std::int64_t slices = 1;                                 // that the program has asked for
};

class VerifiedCall {
 public:
  explicit VerifiedCall(VerifiedParts parts) : parts_(std::move(parts)) {}
  virtual ~VerifiedCall() = default;
  VerifiedCall(const VerifiedCall&) = delete;
  VerifiedCall& operator=(const VerifiedCall&) = delete;

  const VerifiedParts& parts() const noexcept { return parts_; }
  /// Makes the call on these ranks, with this number of slices. No rank means all.
  virtual void run(CallResult& result, std::span<const int> ranks, std::int64_t slices) const = 0;
  /// Runs change_worker_state on all workers. Returns the descriptions of rank 0.
  virtual std::string change_state(StateAction action) const = 0;

 protected:
  VerifiedParts& parts() noexcept { return parts_; }

 private:
  VerifiedParts parts_;
};

/// Something on a worker that calls can change beside variables. While it is registered (add_state_keeper), the worker
/// calls its members between the calls of Session::verify, on the thread that serves calls.
class StateKeeper {
 public:
  /// The worker that calls a member: one of the two is not null.
  struct Caller {
    CpuWorker* cpu = nullptr;
    CudaWorker* cuda = nullptr;
  };
  /// Whether restore() puts back random generators too.
  enum class Generators : bool { as_they_are, restored };

  StateKeeper() { add_state_keeper(*this); }
  virtual ~StateKeeper() { remove_state_keeper(*this); }
  StateKeeper(const StateKeeper&) = delete;
  StateKeeper& operator=(const StateKeeper&) = delete;

  /// Keeps a copy of the state.
  virtual void keep(const Caller& caller) = 0;
  /// Makes the state that of the copy.
  virtual void restore(const Caller& caller, Generators generators) = 0;
  /// Frees the copy.
  virtual void drop() noexcept = 0;
  /// Lines that say what can make results depend on the division of rows (module_facts_from in master/api).
  virtual std::string describe() const = 0;
};

}  // namespace syncrun::detail

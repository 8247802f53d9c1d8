#pragma once

// The commands in flight: their numbers, when each is complete, which have failed, and how long each may take. Pure
// bookkeeping over the control block. This class never waits, and does not know processes.
//
//   filled in --publish--> in flight --its ranks are done--> complete --retire--> drained
//   a slot is free for the command kRingSize later once every rank has passed it, including ranks that took no part

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/control_block.hpp"
#include "launcher/calls/call_clocks.hpp"
#include "launcher/session/records.hpp"

namespace syncrun::detail {

/// The objects that a command in flight keeps alive, and the place for its result.
struct InFlight {
  CallResult* result = nullptr;
  std::shared_ptr<CallResult> kept_result;  // of a future
  std::shared_ptr<FunctionRecord> function;
  std::array<std::shared_ptr<void>, kMaxArguments> arguments;
  std::size_t arguments_count = 0;
  std::vector<std::uint64_t> temporaries;  // in the heap: index lists, large values
  const char* what = "";                   // for commands that are not function calls: "all_reduce", ...
  std::string subject;                     // for the same commands: the variable
  std::vector<std::string> writes;         // the variables that the command writes to

  void reset() noexcept;
  /// True if the program has dropped the future. The failure then surfaces elsewhere.
  bool is_dropped() const noexcept { return kept_result != nullptr && kept_result.use_count() == 1; }
};

class CallRing {
 public:
  /// Checks whether all ranks of a command are done with it. Each check continues at the rank that was not done last
  /// time.
  class Completion {
   public:
    Completion(const ControlBlock& control, std::uint64_t id) noexcept
        : control_(control),
          id_(id),
          behind_(control.command(id).ranks.begin()),
          end_(control.command(id).ranks.end()) {}
    bool operator()() noexcept {
      while (behind_ != end_ && control_.worker(*behind_).done.load(std::memory_order_seq_cst) >= id_) ++behind_;
      return behind_ == end_;
    }

   private:
    const ControlBlock& control_;
    std::uint64_t id_;
    RankSet::Iterator behind_;  // all ranks before this one are done
    RankSet::Iterator end_;
  };

  CallRing() = default;
  CallRing(const CallRing&) = delete;
  CallRing& operator=(const CallRing&) = delete;
  /// Called once, before anything else. `control` is the control block with the commands.
  void attach(ControlBlock control);

  const RankSet& all_ranks() const noexcept { return all_ranks_; }
  std::uint64_t last_drained() const noexcept { return drained_; }
  std::uint64_t last_published() const noexcept { return next_ - 1; }
  /// The oldest command in flight, if there is one.
  std::uint64_t oldest() const noexcept { return drained_ + 1; }
  bool is_idle() const noexcept { return drained_ == last_published(); }
  bool is_in_flight(std::uint64_t id) const noexcept { return id > drained_ && id <= last_published(); }
  InFlight& in_flight(std::uint64_t id) noexcept { return in_flight_[id % kRingSize]; }
  const InFlight& in_flight(std::uint64_t id) const noexcept { return in_flight_[id % kRingSize]; }

  // ---- the next command
  /// The command whose slot the next one takes. It must be drained and passed by all ranks first.
  std::uint64_t predecessor() const noexcept { return next_ > kRingSize ? next_ - kRingSize : 0; }
  bool is_predecessor_drained() const noexcept { return predecessor() <= drained_; }
  bool is_predecessor_passed() const noexcept { return predecessor() <= passed_; }
  /// The head of the next command, initialised for all ranks and with this limit (0: none). It is a draft: publish()
  /// copies it into the slot.
  CommandHead& next(Milliseconds timeout) noexcept;
  /// The rest of the next command, which only calls use.
  Command& next_slot() noexcept { return control_.command(next_); }
  InFlight& next_in_flight() noexcept { return in_flight(next_); }
  /// Makes the command visible to the workers. Returns its id.
  std::uint64_t publish() noexcept;

  // ---- completion
  Completion completion_of(std::uint64_t id) const noexcept { return {control_, id}; }
  bool is_complete(std::uint64_t id) const noexcept { return completion_of(id)(); }
  /// True if every rank is done with all commands up to this one.
  bool have_all_passed(std::uint64_t id) const noexcept;
  void note_passed(std::uint64_t id) noexcept { passed_ = id; }
  /// The oldest command is complete. Its result is handed out next.
  void retire(std::uint64_t id) noexcept;
  /// The result of the command has been handed out. Lets the workers use its memory again, and releases the objects
  /// that it kept alive.
  void release(std::uint64_t id, const std::exception_ptr& failure) noexcept;
  /// A call that failed together with all others that were in flight.
  struct UnfinishedCall {
    CallResult* result;
    std::shared_ptr<CallResult> kept;
    bool is_dropped;
  };
  /// Ends everything in flight without a result. Every rank has passed it. Calls `free` with each temporary.
  template <class Free>
  std::vector<UnfinishedCall> take_unfinished(Free&& free);
  /// Gives this error to every call in flight. For the end of the session: nothing is published any more.
  void fail_all(const std::exception_ptr& cause) noexcept;
  void forget_all() noexcept;

  // ---- failures
  /// True if the command was published before the program saw an earlier failure. It then shares the cause of that
  /// failure.
  bool is_consequence(std::uint64_t id) const noexcept { return id <= acknowledged_; }
  bool has_failed(std::uint64_t id) const noexcept;
  /// The program learns of a failure. All commands that have been published by now fail with it. Later ones are not
  /// affected.
  void acknowledge() noexcept;
  /// The rank that was the first to fail by itself in a command. Empty if no rank failed by itself.
  std::optional<int> first_failed_rank(std::uint64_t id) const noexcept;
  /// True if a rank failed in such a way that its device can no longer be used.
  bool has_lost_device(std::uint64_t id) const noexcept;
  /// The last failure, which later calls may share.
  const std::exception_ptr& last_failure() const noexcept { return last_failure_; }
  void set_last_failure(const std::exception_ptr& failure) noexcept { last_failure_ = failure; }
  /// The first failure that only dropped futures have received, so that the program has not seen it.
  const std::exception_ptr& dropped_failure() const noexcept { return dropped_failure_; }
  void note_dropped(const std::exception_ptr& failure) noexcept {
    if (!dropped_failure_) dropped_failure_ = failure;
  }
  std::exception_ptr take_dropped_failure() noexcept { return std::exchange(dropped_failure_, nullptr); }
  /// The program has seen this failure. It need not surface again.
  void has_surfaced(const std::exception_ptr& failure) noexcept {
    if (dropped_failure_ == failure) dropped_failure_ = nullptr;
  }

  // ---- deadlines
  CallClocks& clocks() noexcept { return clocks_; }
  /// The master has waited for this long. Returns the first call whose limit is used up.
  std::optional<std::uint64_t> count_waited(Clock::duration waited) noexcept;

  // ---- words
  /// The function's name, or what the command does: "step", "all_reduce of weights".
  std::string name_of(std::uint64_t id) const;
  /// The shared variables that commands in flight from `id` on may have written only in part. A body may have written
  /// to its Local copies without finishing, also on ranks that were ahead. An Update is committed on all ranks or on
  /// none.
  std::vector<std::string> half_written_since(std::uint64_t id) const;

 private:
  ControlBlock control_;
  CommandHead draft_;  // of the next command
  RankSet all_ranks_;
  std::uint64_t next_ = 1;
  std::uint64_t drained_ = 0;
  std::uint64_t passed_ = 0;  // every rank has passed the commands up to here, so their slots are free
  std::uint64_t acknowledged_ = 0;
  std::exception_ptr last_failure_;
  std::exception_ptr dropped_failure_;
  CallClocks clocks_{0};
  std::array<InFlight, kRingSize> in_flight_;
};

template <class Free>
std::vector<CallRing::UnfinishedCall> CallRing::take_unfinished(Free&& free) {
  std::vector<UnfinishedCall> unfinished;
  for (std::uint64_t id = oldest(); id < next_; ++id) {
    InFlight& call = in_flight(id);
    if (call.result != nullptr) {
      call.result->finished = true;
      unfinished.push_back({call.result, call.kept_result, call.is_dropped()});
    }
    for (const auto offset : call.temporaries) free(offset);
    call.reset();
  }
  drained_ = passed_ = last_published();
  acknowledge();
  control_.header().consumed.store(drained_, std::memory_order_release);
  return unfinished;
}

}  // namespace syncrun::detail

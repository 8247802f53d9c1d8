#pragma once

// The commands in flight: their numbers, when each is complete, what has failed among them, and how long each may take.
// Pure bookkeeping over the control block: nothing here waits, and nothing knows of processes.
//
//   filled in --publish--> in flight --its ranks are done--> complete --retire--> drained
//   a slot is free for the command kRingSize later once every rank has passed it, whether it took part or not

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/control_block.hpp"
#include "launcher/call_clocks.hpp"
#include "launcher/records.hpp"

namespace syncrun::detail {

/// What a command in flight keeps alive and where its result goes.
struct InFlight {
  CallResult* result = nullptr;
  std::shared_ptr<CallResult> kept_result;  // of a future
  std::shared_ptr<FunctionRecord> function;
  std::array<std::shared_ptr<void>, kMaxArguments> arguments;
  std::size_t arguments_count = 0;
  std::vector<std::uint64_t> temporaries;  // in the heap: index lists, large values
  const char* what = "";                   // of commands that are no function calls: "all_reduce", ...
  std::string subject;                     // their variable
  std::vector<std::string> writes;         // variables that they write to

  void reset() noexcept;
  /// Nobody holds the future: its failure surfaces elsewhere.
  bool is_dropped() const noexcept { return kept_result != nullptr && kept_result.use_count() == 1; }
};

class CallRing {
 public:
  /// Looks whether the ranks of a command are done with it, from where it last found one that was not.
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
    RankSet::Iterator behind_;  // ranks before it are done
    RankSet::Iterator end_;
  };

  CallRing() = default;
  CallRing(const CallRing&) = delete;
  CallRing& operator=(const CallRing&) = delete;
  /// Once, before anything else: where its commands are.
  void attach(ControlBlock control);

  const RankSet& all_ranks() const noexcept { return all_ranks_; }
  std::uint64_t last_drained() const noexcept { return drained_; }
  std::uint64_t last_published() const noexcept { return next_ - 1; }
  /// The oldest command in flight, where there is one.
  std::uint64_t oldest() const noexcept { return drained_ + 1; }
  bool is_idle() const noexcept { return drained_ == last_published(); }
  bool is_in_flight(std::uint64_t id) const noexcept { return id > drained_ && id <= last_published(); }
  InFlight& in_flight(std::uint64_t id) noexcept { return in_flight_[id % kRingSize]; }
  const InFlight& in_flight(std::uint64_t id) const noexcept { return in_flight_[id % kRingSize]; }

  // ---- the next command
  /// The command whose slot the next one takes: it must be drained, and passed by all ranks, first.
  std::uint64_t predecessor() const noexcept { return next_ > kRingSize ? next_ - kRingSize : 0; }
  bool is_predecessor_drained() const noexcept { return predecessor() <= drained_; }
  bool is_predecessor_passed() const noexcept { return predecessor() <= passed_; }
  /// Its slot, for all ranks and with this limit (0: none); the rest as every command begins.
  Command& next(Milliseconds timeout) noexcept;
  InFlight& next_in_flight() noexcept { return in_flight(next_); }
  /// Lets the workers see it; returns its id.
  std::uint64_t publish() noexcept;

  // ---- completion
  Completion completion_of(std::uint64_t id) const noexcept { return {control_, id}; }
  bool is_complete(std::uint64_t id) const noexcept { return completion_of(id)(); }
  /// Every rank is done with what came up to here.
  bool have_all_passed(std::uint64_t id) const noexcept;
  void note_passed(std::uint64_t id) noexcept { passed_ = id; }
  /// The oldest command is complete: its result is dealt out next.
  void retire(std::uint64_t id) noexcept;
  /// Its result has been dealt out: workers may use its memory again, and what it kept alive goes.
  void release(std::uint64_t id, const std::exception_ptr& failure) noexcept;
  /// A call that failed together with all that were in flight.
  struct Stranded {
    CallResult* result;
    std::shared_ptr<CallResult> kept;
    bool is_dropped;
  };
  /// All that is in flight is over without a result, and every rank has passed it. The temporaries of each go to `free`.
  template <class Free>
  std::vector<Stranded> strand(Free&& free);
  /// All that is in flight has failed for this reason; nothing is published any more.
  void fail_all(const std::exception_ptr& cause) noexcept;
  void forget_all() noexcept;

  // ---- failures
  /// It was published before the program saw an earlier failure: it shares that failure's cause.
  bool is_consequence(std::uint64_t id) const noexcept { return id <= acknowledged_; }
  bool has_failed(std::uint64_t id) const noexcept;
  /// What has been published by now fails with the failure that the program learns of; what comes next is on its own.
  void acknowledge() noexcept;
  /// The rank whose own failure in a command was the first; nothing if none had one.
  std::optional<int> first_failed_rank(std::uint64_t id) const noexcept;
  /// A rank failed so that its device cannot be used any more.
  bool has_lost_device(std::uint64_t id) const noexcept;
  /// The last failure, which later calls may share.
  const std::exception_ptr& last_failure() const noexcept { return last_failure_; }
  void set_last_failure(const std::exception_ptr& failure) noexcept { last_failure_ = failure; }
  /// The first that only a dropped future has had, and the program has not.
  const std::exception_ptr& dropped_failure() const noexcept { return dropped_failure_; }
  void note_dropped(const std::exception_ptr& failure) noexcept {
    if (!dropped_failure_) dropped_failure_ = failure;
  }
  std::exception_ptr take_dropped_failure() noexcept { return std::exchange(dropped_failure_, nullptr); }
  /// A failure has reached the program: it need not surface again.
  void has_surfaced(const std::exception_ptr& failure) noexcept {
    if (dropped_failure_ == failure) dropped_failure_ = nullptr;
  }

  // ---- deadlines
  CallClocks& clocks() noexcept { return clocks_; }
  /// The master has waited for so long: the first call whose limit is used up.
  std::optional<std::uint64_t> count_waited(Clock::duration waited) noexcept;

  // ---- words
  /// The function's name, or what the command does: "step", "all_reduce of weights".
  std::string name_of(std::uint64_t id) const;
  /// Shared variables that commands in flight from `id` on may have half written. A body may have written to its Local
  /// copies and not come to its end, also on ranks that were ahead. An Update is committed on all ranks or on none.
  std::vector<std::string> half_written_since(std::uint64_t id) const;

 private:
  ControlBlock control_;
  RankSet all_ranks_;
  std::uint64_t next_ = 1;
  std::uint64_t drained_ = 0;
  std::uint64_t passed_ = 0;  // every rank is known to have passed the commands up to here: their slots are free
  std::uint64_t acknowledged_ = 0;
  std::exception_ptr last_failure_;
  std::exception_ptr dropped_failure_;
  CallClocks clocks_{0};
  std::array<InFlight, kRingSize> in_flight_;
};

template <class Free>
std::vector<CallRing::Stranded> CallRing::strand(Free&& free) {
  std::vector<Stranded> stranded;
  for (std::uint64_t id = oldest(); id < next_; ++id) {
    InFlight& call = in_flight(id);
    if (call.result != nullptr) {
      call.result->finished = true;
      stranded.push_back({call.result, call.kept_result, call.is_dropped()});
    }
    for (const auto offset : call.temporaries) free(offset);
    call.reset();
  }
  drained_ = passed_ = last_published();
  acknowledge();
  control_.header().consumed.store(drained_, std::memory_order_release);
  return stranded;
}

}  // namespace syncrun::detail

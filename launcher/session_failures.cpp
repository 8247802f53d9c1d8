// What a session does when something goes wrong: finds the first cause, says it, and ends what cannot go on.

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <thread>

#include "common/errors.hpp"
#include "launcher/describe.hpp"
#include "launcher/rank_report.hpp"
#include "launcher/session_core.hpp"

namespace syncrun::detail {

namespace {

constexpr Milliseconds kPeersLimit{100};
// They wake within this, where they have a core: until then this thread gives its own up rather than sleep too long.
constexpr Milliseconds kPeersWake{2};

std::string may_be_half_written(const std::vector<std::string>& variables) {
  return variables.empty() ? std::string() : "\n  may be half written: " + in_quotes(variables);
}

}  // namespace

Failure SessionCore::blame(int rank) const {
  Failure failure;
  failure.rank = rank;
  failure.pid = nursery_->pid(rank);
  failure.device = device_names_[static_cast<std::size_t>(rank)];
  return failure;
}

Error SessionCore::lost_error(Failure failure, const std::string& where, std::optional<int> wait_status) const {
  const std::string who = describe_rank(failure.rank);
  return lost_error(who, std::move(failure), where, wait_status.value_or(0), "");
}

/// "rank 1 (cpu1, pid 77) was lost <where>: <cause>", the last lines it wrote, and what was done about it.
Error SessionCore::lost_error(const std::string& who, Failure failure, const std::string& where, int wait_status,
                              const std::string& report) {
  std::string message = who + " was lost " + where + ": " + failure.cause;
  for (const auto& line : failure.last_stderr) message += "\n  [rank " + std::to_string(failure.rank) + "] " + line;
  message += report_of(failure.ranks) + report;
  return {ErrorKind::worker_lost, message, std::move(failure), wait_status};
}

ChildEnd SessionCore::await_cause(int rank) const { return await_child_end(*nursery_, rank); }

void SessionCore::fail_start(int rank) {
  if (nursery_->has_lost_descriptors()) throw nursery_->lost_descriptors();
  const ChildEnd end = await_cause(rank);
  Failure failure = describe_loss(rank, end);
  const std::string where = "while starting (phase " + failure.phase + ")";
  throw lost_error(std::move(failure), where, end.wait_status);
}

std::string SessionCore::phase_name(int rank) const {
  return std::string(to_string(phase_of(control_.worker(rank).progress.load(std::memory_order_acquire))));
}

/// How it ended; and why, where it ended by itself and could say so.
std::string SessionCore::cause_of(int rank, const ChildEnd& end) const {
  const WorkerSlot& slot = control_.worker(rank);
  std::string status = end.cause;
  const bool is_killed = end.wait_status && status == describe_status(SIGKILL);
  if (is_killed) status += oom_watch_.describe_kill();
  const std::string reason(get_text(slot.reason));
  if (slot.start.load() == StartState::failed && !reason.empty()) return reason;
  if (!reason.empty()) return status + ": " + reason;
  for (const auto& line : nursery_->last_stderr(rank)) {
    if (line.starts_with(kCannotStart)) return status + ": " + line.substr(kCannotStart.size());
  }
  return status;
}

std::string SessionCore::describe_rank(int rank) const {
  return "rank " + std::to_string(rank) + " (" + device_names_[static_cast<std::size_t>(rank)] + ", pid " +
         std::to_string(nursery_->pid(rank)) + ")";
}

std::string SessionCore::call_name(std::uint64_t id) const {
  const InFlight& in_flight = in_flight_[id % kRingSize];
  if (in_flight.function) return in_flight.function->name;
  return in_flight.subject.empty() ? in_flight.what : in_flight.what + (" of " + in_flight.subject);
}

/// The earliest failure of a rank's own; where a call before this one failed, that one's.
std::exception_ptr SessionCore::failure_of(std::uint64_t id) {
  int first = -1;
  for (const int rank : control_.command(id).ranks) {
    const Outbox& outbox = control_.outbox(id, rank);
    if (outbox.vote != Vote::failed || outbox.failed_ns == std::numeric_limits<std::int64_t>::max()) continue;
    if (first < 0 || outbox.failed_ns < control_.outbox(id, first).failed_ns) first = rank;
  }
  // Calls that were published by now fail with the same cause; later ones are on their own.
  const bool is_consequence = id <= acknowledged_failure_;
  if (!is_consequence) {
    acknowledged_failure_ = last_published();
    control_.header().acknowledged.store(acknowledged_failure_, std::memory_order_release);
  }
  if ((is_consequence || first < 0) && last_failure_) return last_failure_;
  if (first < 0) {
    return std::make_exception_ptr(
        Error(ErrorKind::function, "call '" + call_name(id) + "' was abandoned, and no rank says why"));
  }
  const Outbox& outbox = control_.outbox(id, first);
  Failure failure = blame(first);
  failure.call = call_name(id);
  failure.phase = to_string(outbox.failed_phase);
  failure.cause = get_text(outbox.message);
  failure.undefined = half_written_since(id);
  const std::string message = describe_rank(first) + " failed in call '" + failure.call + "' (phase " + failure.phase +
                              "): " + failure.cause + may_be_half_written(failure.undefined);
  return std::make_exception_ptr(Error(outbox.error_kind, message, std::move(failure), outbox.native_code));
}

Failure SessionCore::describe_loss(int rank, const ChildEnd& end) const {
  Failure failure = blame(rank);
  failure.phase = phase_name(rank);
  failure.cause = cause_of(rank, end);
  failure.last_stderr = nursery_->last_stderr(rank);
  return failure;
}

/// Gives peers that wait for each other a moment to say when they stopped waiting, before they are ended.
void SessionCore::await_peers_release(int lost) const {
  const auto is_waiting = [&](int rank) {
    const WorkerSlot& slot = control_.worker(rank);
    const Phase phase = phase_of(slot.progress.load(std::memory_order_acquire));
    return rank != lost && slot.released_ns.load(std::memory_order_acquire) == 0 &&
           (phase == Phase::collective || phase == Phase::vote);
  };
  const auto begin = Clock::now();
  for (int rank = 0; rank < world_size(); ++rank) {
    while (is_waiting(rank)) {
      const auto waited = Clock::now() - begin;
      if (waited > kPeersLimit) return;
      if (waited < kPeersWake) yield_core();
      else std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

/// A body may have written to its Local copies, and not come to its end, also on ranks that were ahead of the others. An
/// Update is committed on all ranks or on none.
std::vector<std::string> SessionCore::half_written_since(std::uint64_t id) const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (; id < next_id_; ++id) {
    const InFlight& in_flight = in_flight_[id % kRingSize];
    for (const auto& name : in_flight.writes) add(name);
    if (!in_flight.function) continue;
    const auto& arguments = in_flight.function->signature.arguments;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].kind == ArgumentKind::local)
        add(static_cast<VariableRecord*>(in_flight.arguments[i].get())->name);
    }
  }
  return names;
}

void SessionCore::end_with_loss(std::uint64_t id) {
  if (nursery_->has_lost_descriptors()) end_with(nursery_->lost_descriptors());
  const auto released = Clock::now();
  const int rank = static_cast<int>(control_.header().lost.load()) - 1;
  const ChildEnd end = await_cause(rank);
  const auto status = end.wait_status;
  Failure failure = describe_loss(rank, end);
  failure.master_released = released;
  await_peers_release(rank);
  for (int other = 0; other < world_size(); ++other) {
    failure.peers_released.emplace_back(Clock::duration(control_.worker(other).released_ns.load()));
  }
  const std::uint64_t at = command_of(control_.worker(rank).progress.load());
  const bool is_in_call = failure.phase != to_string(Phase::idle) && at >= id && at <= last_published();
  if (is_in_call) failure.call = call_name(at);
  const std::string where =
      is_in_call ? "in call '" + failure.call + "' (phase " + failure.phase + ")" : "(" + failure.phase + ")";
  if (may_replace()) {
    return replace_lost(std::move(failure), where, status.value_or(0), Milliseconds(control_.command(id).timeout_ms));
  }
  end_with(lost_error(std::move(failure), where, status));
}

void SessionCore::end_with(const Error& error) {
  end_cause_ = error;
  const auto cause = std::make_exception_ptr(error);
  for (std::uint64_t id = drained_ + 1; id < next_id_; ++id) {
    InFlight& in_flight = in_flight_[id % kRingSize];
    if (in_flight.result != nullptr) {
      in_flight.result->error = cause;
      in_flight.result->finished = true;
    }
  }
  abandon();
  throw error;
}

/// A worker whose GPU has lost its context computes nothing any more.
bool SessionCore::has_lost_device(std::uint64_t id) const noexcept {
  for (const int rank : control_.command(id).ranks) {
    const Outbox& outbox = control_.outbox(id, rank);
    if (outbox.vote == Vote::failed && outbox.is_fatal) return true;
  }
  return false;
}

void SessionCore::end_with_lost_device(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    end_with(error);
  } catch (const std::exception& error) {
    end_with(Error(ErrorKind::cuda, error.what()));
  }
}

}  // namespace syncrun::detail

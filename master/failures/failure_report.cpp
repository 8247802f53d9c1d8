#include "master/failures/failure_report.hpp"

#include <algorithm>
#include <csignal>
#include <limits>

#include "common/text/errors.hpp"
#include "master/calls/describe.hpp"
#include "master/failures/lost_child.hpp"
#include "master/process/spawn.hpp"
#include "master/process/stuck_ranks.hpp"

namespace syncrun::detail::master::failures {

namespace {

std::string may_be_half_written(const std::vector<std::string>& variables) {
  return variables.empty() ? std::string() : "\n  may be half written: " + calls::in_quotes(variables);
}

std::string tag_of(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

FailureReport::FailureReport(pool::WorkerPool& pool, const calls::CommandTable& calls,
                             std::vector<std::string> device_names)
    : pool_(pool), calls_(calls), device_names_(std::move(device_names)) {}

std::string FailureReport::describe_rank(int rank) const {
  return tag_of(rank) + " (" + device_names_[static_cast<std::size_t>(rank)] + ", pid " +
         std::to_string(pool_.pid(rank)) + ")";
}

Failure FailureReport::blame(int rank) const {
  Failure failure;
  failure.rank = rank;
  failure.pid = pool_.pid(rank);
  failure.device = device_names_[static_cast<std::size_t>(rank)];
  return failure;
}

std::string FailureReport::phase_of_rank(int rank) const {
  return std::string(
      protocol::to_string(protocol::phase_of(pool_.control().worker(rank).progress.load(std::memory_order_acquire))));
}

// ---- calls that failed ----------------------------------------------------------------------------------------

Error FailureReport::failed_call(std::uint64_t id, int rank) const {
  const protocol::Outbox& outbox = calls_.outbox(id, rank);
  Failure failure = blame(rank);
  failure.call = calls_.name_of(id);
  failure.phase = protocol::to_string(outbox.failed_phase);
  failure.cause = text::get_text(outbox.message);
  failure.undefined = calls_.half_written_by(id);
  const std::string message = describe_rank(rank) + " failed in call '" + failure.call + "' (phase " + failure.phase +
                              "): " + failure.cause + may_be_half_written(failure.undefined);
  return {outbox.error_kind, message, std::move(failure), outbox.native_code};
}

Error FailureReport::abandoned_call(std::uint64_t id) const {
  return {ErrorKind::function, "call '" + calls_.name_of(id) + "' was abandoned, and no rank says why"};
}

// ---- workers that were lost -----------------------------------------------------------------------------------

/// Returns how the worker ended. Adds the reason if the worker ended by itself and could report one.
std::string FailureReport::cause_of(int rank, const process::ChildEnd& end) const {
  const protocol::WorkerSlot& slot = pool_.control().worker(rank);
  std::string status = end.cause;
  const bool is_killed = end.wait_status && status == process::describe_status(SIGKILL);
  if (is_killed) status += pool_.describe_kill();
  const std::string reason(text::get_text(slot.reason));
  if (slot.start.load() == protocol::StartState::failed && !reason.empty()) return reason;
  if (!reason.empty()) return status + ": " + reason;
  for (const auto& line : pool_.last_stderr(rank)) {
    if (line.starts_with(protocol::kCannotStart)) return status + ": " + line.substr(protocol::kCannotStart.size());
  }
  return status;
}

Failure FailureReport::describe_loss(int rank, const process::ChildEnd& end) const {
  Failure failure = blame(rank);
  failure.phase = phase_of_rank(rank);
  failure.cause = cause_of(rank, end);
  failure.last_stderr = pool_.last_stderr(rank);
  put_stack(failure, end.crash);
  return failure;
}

std::string FailureReport::place_loss(Failure& failure) const {
  const std::uint64_t at = protocol::command_of(pool_.control().worker(failure.rank).progress.load());
  const bool is_in_call = failure.phase != protocol::to_string(protocol::Phase::idle) && calls_.is_in_flight(at);
  if (!is_in_call) return "(" + failure.phase + ")";
  failure.call = calls_.name_of(at);
  return "in call '" + failure.call + "' (phase " + failure.phase + ")";
}

Error FailureReport::lost(Failure failure, const std::string& where, int wait_status, std::string more) const {
  const int rank = failure.rank;
  // Use the pid of the lost process. Another process may have its rank by now.
  const std::string who = tag_of(rank) + " (" + failure.device + ", pid " + std::to_string(failure.pid) + ")";
  return lost_error({who, tag_of(rank), where, std::move(failure), std::move(more), wait_status});
}

Error FailureReport::failed_start(int rank, const process::ChildEnd& end) const {
  Failure failure = describe_loss(rank, end);
  const std::string where = "while starting (phase " + failure.phase + ")";
  return lost(std::move(failure), where, end.wait_status.value_or(0));
}

// ---- deadlines ------------------------------------------------------------------------------------------------

bool FailureReport::takes_part(int rank, std::uint64_t id) const {
  // While workers start, there is no command yet.
  return !calls_.is_in_flight(id) || calls_.command(id).ranks.has(rank);
}

/// True if other ranks have come further in the collectives of the command, and none is further back. So this rank keeps
/// others waiting. On several nodes, the ranks that wait may be at different steps.
bool FailureReport::is_behind(int rank, std::uint64_t id) const {
  const auto steps_of = [&](int one) {
    const protocol::WorkerSlot& slot = pool_.control().worker(one);
    if (slot.done.load() >= id) return std::numeric_limits<std::uint64_t>::max();
    return slot.collective_command.load() == id ? slot.collective_step.load() : 0;
  };
  const std::uint64_t own = steps_of(rank);
  bool is_one_ahead = false;
  for (int other = 0; other < pool_.world_size(); ++other) {
    if (!takes_part(other, id)) continue;
    const std::uint64_t steps = steps_of(other);
    if (steps < own) return false;
    is_one_ahead = is_one_ahead || steps > own;
  }
  return is_one_ahead;
}

std::vector<RankState> FailureReport::rank_states(std::uint64_t id) {
  const protocol::ControlBlock& control = pool_.control();
  const auto now = os::Clock::now();
  heartbeats_.look(control, now);
  std::vector<RankState> states;
  for (int rank = 0; rank < pool_.world_size(); ++rank) {
    const protocol::WorkerSlot& slot = control.worker(rank);
    const std::uint64_t progress = slot.progress.load();
    const std::uint64_t at = protocol::command_of(progress);
    RankState state;
    state.rank = rank;
    state.pid = pool_.pid(rank);
    state.device = device_names_[static_cast<std::size_t>(rank)];
    state.phase = protocol::to_string(protocol::phase_of(progress));
    state.takes_part = takes_part(rank, id);
    state.has_finished = state.takes_part && slot.done.load() >= id;
    state.is_behind = is_behind(rank, id);
    if (protocol::phase_of(progress) == protocol::Phase::idle) {
      if (!state.has_finished && calls_.is_in_flight(id)) state.call = calls_.name_of(id);
    } else if (calls_.is_in_flight(at)) {
      state.call = calls_.name_of(at);
    }
    state.no_progress_for = heartbeats_.age(rank, now);
    state.stop_signal = pool_.stop_signal(rank);
    state.tracer = pool_.tracer(rank);
    if (const auto status = pool_.end_status(rank)) state.end = process::describe_status(*status);
    states.push_back(std::move(state));
  }
  return states;
}

Error FailureReport::late(os::Clock::time_point released, std::vector<RankState> states, int culprit,
                          const std::string& call, const std::string& what) {
  Failure failure;
  std::string message;
  if (culprit >= 0) {
    const RankState& state = states[static_cast<std::size_t>(culprit)];
    failure = blame(culprit);
    failure.phase = state.phase;
    failure.last_stderr = pool_.last_stderr(culprit);
    message = describe_rank(culprit) + " " + process::describe_phase(state) + " at the deadline: ";
  }
  pool_.take_stacks(states);
  failure.call = call;
  failure.cause = "deadline";
  failure.master_released = released;
  message += what + tagged_lines(tag_of(culprit), failure.last_stderr) + process::report_of(states);
  failure.ranks = std::move(states);
  return {ErrorKind::timeout, message, std::move(failure)};
}

Error FailureReport::late_call(std::uint64_t id) {
  const std::string call = calls_.name_of(id);
  const auto released = os::Clock::now();
  auto states = rank_states(id);
  const int culprit = process::culprit_of(states);
  return late(released, std::move(states), culprit, call,
              "call '" + call + "' did not finish within " + std::to_string(calls_.command(id).timeout_ms) +
                  " ms (--timeout or CallOptions::timeout sets another limit)");
}

Error FailureReport::late_start(os::Milliseconds limit) {
  const auto released = os::Clock::now();
  auto states = rank_states(1);
  for (auto& state : states) {
    state.has_finished = pool_.control().worker(state.rank).start.load() == protocol::StartState::ready;
  }
  const int culprit = std::max(process::culprit_of(states), 0);
  return late(released, std::move(states), culprit, "",
              "it did not start within " + std::to_string(limit.count()) +
                  " ms (--start-timeout or SessionOptions::start_timeout sets another limit)");
}

}  // namespace syncrun::detail::master::failures

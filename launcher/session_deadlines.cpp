// What a session does when a deadline passes: looks where every rank is, says who keeps the others, and ends.

#include <algorithm>
#include <utility>

#include "common/errors.hpp"
#include "launcher/debugger.hpp"
#include "launcher/rank_report.hpp"
#include "launcher/session_core.hpp"

namespace syncrun::detail {

std::optional<std::uint64_t> SessionCore::count_waited(Clock::duration waited) {
  const auto done_of = [this](int rank) { return control_.worker(rank).done.load(std::memory_order_acquire); };
  return clocks_.count(drained_ + 1, last_published(), waited, done_of);
}

SessionCore::CallLimits::CallLimits(SessionCore& session) noexcept : session_(session), waited_(Clock::now()) {
  session_.clocks_.end_polling();
}

bool SessionCore::CallLimits::is_over(Clock::time_point now) {
  expired_ = session_.count_waited(waited_.since_last_look(now));
  return expired_.has_value();
}

Clock::duration SessionCore::CallLimits::nap(Clock::duration longest) const noexcept {
  return std::min(session_.clocks_.least_left(), longest);
}

void SessionCore::CallLimits::end() { static_cast<void>(is_over(Clock::now())); }

void SessionCore::count_poll() {
  if (const auto expired = count_waited(clocks_.poll(nursery_->awake_time(Clock::now())))) expire(*expired);
}

void SessionCore::expire(std::uint64_t id) {
  if (is_debugged(*nursery_)) return clocks_.restart(id);
  end_with_timeout(id, Milliseconds(control_.command(id).timeout_ms));
}

/// In the collectives of a command: somebody waits for it, whatever it waits for itself.
bool SessionCore::is_behind(int rank, std::uint64_t id) const {
  const auto steps_of = [&](int one) {
    const WorkerSlot& slot = control_.worker(one);
    return slot.collective_command.load() == id ? slot.collective_step.load() : 0;
  };
  for (int other = 0; other < world_size(); ++other) {
    if (steps_of(other) > steps_of(rank)) return true;
  }
  return false;
}

std::vector<RankState> SessionCore::rank_states(std::uint64_t id) {
  const auto now = Clock::now();
  heartbeats_.look(control_, now);
  std::vector<RankState> states;
  for (int rank = 0; rank < world_size(); ++rank) {
    const WorkerSlot& slot = control_.worker(rank);
    const std::uint64_t progress = slot.progress.load();
    const std::uint64_t at = command_of(progress);
    RankState state;
    state.rank = rank;
    state.pid = nursery_->pid(rank);
    state.device = device_names_[static_cast<std::size_t>(rank)];
    state.phase = to_string(phase_of(progress));
    const bool is_published = id > drained_ && id <= last_published();  // while starting there is no command yet
    state.takes_part = !is_published || control_.command(id).ranks.has(rank);
    state.has_finished = state.takes_part && slot.done.load() >= id;
    state.is_behind = is_behind(rank, id);
    if (phase_of(progress) == Phase::idle) {
      if (!state.has_finished && id > drained_) state.call = call_name(id);
    } else if (at > drained_ && at <= last_published()) {
      state.call = call_name(at);
    }
    state.no_progress_for = heartbeats_.age(rank, now);
    state.stop_signal = nursery_->stop_signal(rank);
    state.tracer = tracer_of(state.pid);
    if (const auto status = nursery_->await_end(rank, Milliseconds(0))) state.end = describe_status(*status);
    states.push_back(std::move(state));
  }
  return states;
}

void SessionCore::end_with_timeout(std::uint64_t id, Milliseconds limit) {
  const std::string call = call_name(id);
  end_at_deadline(rank_states(id), call,
                  "call '" + call + "' did not finish within " + std::to_string(limit.count()) +
                      " ms (--timeout or CallOptions::timeout sets another limit)");
}

/// A rank that takes no part in a command has not passed it either: it stands still, since it has nothing else to do.
void SessionCore::end_with_ring_held(std::uint64_t id) {
  end_at_deadline(rank_states(id), "",
                  "it did not pass the calls of other ranks within " + std::to_string(settings_.call_timeout.count()) +
                      " ms (--timeout or SessionOptions::timeout sets another limit)");
}

void SessionCore::end_at_deadline(std::vector<RankState> states, const std::string& call, const std::string& what) {
  const auto released = Clock::now();
  const int culprit = culprit_of(states);
  Failure failure;
  std::string message;
  if (culprit >= 0) {
    failure = blame(culprit);
    failure.phase = states[static_cast<std::size_t>(culprit)].phase;
    failure.last_stderr = nursery_->last_stderr(culprit);
    message =
        describe_rank(culprit) + " " + describe_phase(states[static_cast<std::size_t>(culprit)]) + " at the deadline: ";
  }
  take_stacks(states);
  failure.call = call;
  failure.cause = "deadline";
  failure.master_released = released;
  message += what;
  for (const auto& line : failure.last_stderr) message += "\n  [rank " + std::to_string(culprit) + "] " + line;
  message += report_of(states);
  failure.ranks = std::move(states);
  end_with(Error(ErrorKind::timeout, message, std::move(failure)));
}

void SessionCore::fail_late_start() {
  auto states = rank_states(1);
  for (auto& state : states) state.has_finished = control_.worker(state.rank).start.load() == StartState::ready;
  const int culprit = std::max(culprit_of(states), 0);
  take_stacks(states);
  Failure failure = blame(culprit);
  failure.phase = states[static_cast<std::size_t>(culprit)].phase;
  failure.cause = "deadline";
  failure.last_stderr = nursery_->last_stderr(culprit);
  std::string message = describe_rank(culprit) + " " + describe_phase(states[static_cast<std::size_t>(culprit)]) +
                        " at the deadline: it did not start within " + std::to_string(settings_.start_timeout.count()) +
                        " ms (--start-timeout or SessionOptions::start_timeout sets another limit)";
  for (const auto& line : failure.last_stderr) message += "\n  [rank " + std::to_string(culprit) + "] " + line;
  message += report_of(states);
  failure.ranks = std::move(states);
  throw Error(ErrorKind::timeout, message, std::move(failure));
}

/// False if the grace period passes first.
bool SessionCore::await_ends_at_close() {
  Patience patience(settings_.grace);
  heartbeats_.look(control_, Clock::now());
  const Milliseconds lap = std::min(kLap, settings_.grace);
  while (!nursery_->await_all_ends(lap)) {
    heartbeats_.look(control_, Clock::now());
    if (settings_.grace.count() == 0 || patience.is_over()) return false;
  }
  return true;
}

}  // namespace syncrun::detail

// How a session ends: closed by the program, or because a worker was lost, was late, or lost its device.

#include <algorithm>
#include <thread>
#include <utility>

#include "common/errors.hpp"
#include "launcher/rank_report.hpp"
#include "launcher/session_core.hpp"

namespace syncrun::detail {

namespace {

constexpr Milliseconds kPeersLimit{100};
// They wake within this, where they have a core: until then this thread gives its own up rather than sleep too long.
constexpr Milliseconds kPeersWake{2};

}  // namespace

/// Gives peers that wait for each other a moment to say when they stopped waiting, before they are ended.
void SessionCore::await_peers_release(int lost) const {
  const auto is_waiting = [&](int rank) {
    const WorkerSlot& slot = control().worker(rank);
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

void SessionCore::end_with_loss(std::uint64_t id) {
  if (const auto blindness = pool_->blindness()) end_with(*blindness);
  const auto released = Clock::now();
  const int rank = static_cast<int>(control().header().lost.load()) - 1;
  const ChildEnd end = pool_->await_end(rank);
  const int status = end.wait_status.value_or(0);
  Failure failure = report_->describe_loss(rank, end);
  failure.master_released = released;
  await_peers_release(rank);
  for (int other = 0; other < world_size(); ++other) {
    failure.peers_released.emplace_back(Clock::duration(control().worker(other).released_ns.load()));
  }
  const std::string where = report_->place_loss(failure, id);
  const bool may_replace = settings_.on_worker_lost == OnWorkerLost::respawn && state_ == State::open && !is_closing_ &&
                           !recovery_->is_running();
  if (!may_replace) end_with(report_->lost(std::move(failure), where, status));
  const bool is_waiting_for_it = ring_.is_in_flight(id);
  const Milliseconds limit =
      is_waiting_for_it ? Milliseconds(control().command(id).timeout_ms) : settings_.call_timeout;
  try {
    recovery_->replace_lost(std::move(failure), where, status, limit);
  } catch (const Error& error) {
    end_with(error);
  }
}

void SessionCore::end_with(const Error& error) {
  end_cause_ = error;
  ring_.fail_all(std::make_exception_ptr(error));
  abandon();
  throw error;
}

/// A worker whose GPU has lost its context computes nothing any more.
void SessionCore::end_with_lost_device(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    end_with(error);
  } catch (const std::exception& error) {
    end_with(Error(ErrorKind::cuda, error.what()));
  }
}

void SessionCore::check_open() const {
  if (!fork_guard_.is_here()) {
    throw_usage("this process was forked from the session's, and the workers are not its own");
  }
  if (state_ == State::open) return;
  if (end_cause_) throw_usage(std::string("the session is over: ") + end_cause_->what());
  throw_usage("the session was closed");
}

void SessionCore::close() {
  if (fork_guard_.is_here() && state_ != State::open) return;
  {
    const Entry entry(*this);
    is_closing_ = true;
    drain_all();
    next_command().begin<ClosePayload>(CommandKind::close);
    pool_->expect_ends();
    ring_.retire(publish());
  }
  std::optional<Error> failure = failure_at_close();
  const auto dropped = ring_.dropped_failure();
  end_cause_ = failure;
  abandon();
  if (failure) throw *failure;
  if (dropped) std::rethrow_exception(dropped);
  if (profile_failure_) throw *std::exchange(profile_failure_, std::nullopt);
}

/// Waits for the workers' ends; kills who does not end in time. The first that did not end well.
std::optional<Error> SessionCore::failure_at_close() {
  std::vector<RankState> states;  // where there is somebody who does not end
  if (!await_ends_at_close()) {
    states = report_->rank_states(ring_.last_published());
    pool_->take_stacks(states);
    pool_->kill_all();
  }
  if (auto blindness = pool_->blindness()) return blindness;
  for (int rank = 0; rank < world_size(); ++rank) {
    const ChildEnd end = pool_->await_end(rank);
    if (end.wait_status == 0 || end.wait_status == kUnknownStatus) continue;
    Failure loss = report_->describe_loss(rank, end);
    loss.phase = to_string(Phase::close);
    const bool was_killed = !states.empty() && states[static_cast<std::size_t>(rank)].end.empty();
    if (was_killed) {
      loss.cause = killed_after(settings_.grace) + stop_suffix(states[static_cast<std::size_t>(rank)].stop_signal);
    }
    loss.ranks = states;
    return report_->lost(std::move(loss), "while closing (phase close)", end.wait_status.value_or(0));
  }
  return std::nullopt;
}

/// False if the grace period passes first.
bool SessionCore::await_ends_at_close() {
  Patience patience(settings_.grace);
  report_->look(Clock::now());
  const Milliseconds lap = std::min(kLap, settings_.grace);
  while (!pool_->await_all_ends(lap)) {
    report_->look(Clock::now());
    if (settings_.grace.count() == 0 || patience.is_over()) return false;
  }
  return true;
}

}  // namespace syncrun::detail

// A session's commands: published, waited for, and their results dealt out.

#include "common/errors.hpp"
#include "launcher/call_limits.hpp"
#include "launcher/session_core.hpp"

namespace syncrun::detail {

Command& SessionCore::next_command() {
  if (!ring_.is_predecessor_drained()) drain(ring_.predecessor());
  if (!ring_.is_predecessor_passed()) await_passed(ring_.predecessor());
  return ring_.next(settings_.call_timeout);
}

/// Until every rank has passed a command that is drained: those that took no part in it have only to look at it.
void SessionCore::await_passed(std::uint64_t id) {
  auto& header = control().header();
  const auto have_passed = [&] { return ring_.have_all_passed(id); };
  const auto lost = [&] { return has_lost_worker(); };
  const auto look = [this](Clock::time_point now) { report_->look(now); };
  while (!ring_.is_predecessor_passed()) {
    CallLimits limits(ring_);
    Patience patience(settings_.call_timeout);
    EitherLimit<CallLimits, Patience> either{limits, patience};
    switch (wait_until(header.to_master, policy_, either, have_passed, lost, look)) {
      case Woken::interrupted: end_with_loss(ring_.oldest()); continue;  // then every rank has passed all there was
      case Woken::expired:
        if (limits.expired()) expire(*limits.expired());
        else if (!pool_->is_debugged()) end_with(report_->late_passing(id, settings_.call_timeout));
        continue;
      case Woken::ready: break;
    }
    ring_.note_passed(id);
    limits.end();
  }
}

std::uint64_t SessionCore::publish() {
  if (profiler_) [[unlikely]]
    profiler_->begin(ring_.last_published() + 1, ring_.name_of(ring_.last_published() + 1));
  return ring_.publish();
}

void SessionCore::run_system(const char* what, const std::string& subject,
                             const std::function<void(Command&, InFlight&)>& fill) {
  drain_all();  // else the workers would not all see it at the same place among the calls in flight
  Command& command = next_command();
  InFlight& in_flight = ring_.next_in_flight();
  CallResult result;
  in_flight.result = &result;
  in_flight.what = what;
  in_flight.subject = subject;
  try {
    fill(command, in_flight);
  } catch (...) {
    for (const auto offset : in_flight.temporaries) heap_.free(offset, SharedHeap::Giveback::later);
    in_flight.reset();
    throw;
  }
  drain(publish());
  if (result.error) std::rethrow_exception(result.error);
}

void SessionCore::drain(std::uint64_t last) {
  auto& header = control().header();
  while (ring_.last_drained() < last) {
    const std::uint64_t id = ring_.oldest();
    CallLimits limits(ring_);
    const auto lost = [this] { return has_lost_worker(); };
    const auto look = [this](Clock::time_point now) { report_->look(now); };
    switch (wait_until(header.to_master, policy_, limits, ring_.completion_of(id), lost, look)) {
      case Woken::interrupted: end_with_loss(id); continue;  // a new worker has come, and nothing is in flight
      case Woken::expired: expire(*limits.expired()); continue;
      case Woken::ready: break;
    }
    if (id != ring_.last_published()) limits.end();  // else no clock runs any more
    collect(id);
  }
}

void SessionCore::collect(std::uint64_t id) {
  ring_.retire(id);
  const Command& command = control().command(id);
  InFlight& in_flight = ring_.in_flight(id);
  if (profiler_) [[unlikely]]
    profiler_->end(id);
  CallResult unwanted;
  CallResult& result = in_flight.result != nullptr ? *in_flight.result : unwanted;
  try {
    if (ring_.has_failed(id)) {
      result.error = failure_of(id);
    } else if (in_flight.function) {
      if (command.ranks == all_ranks()) in_flight.function->came_through_after = replacements();
      if (command.call().outputs_count != 0) outputs_.collect(id, *in_flight.function, result);
    }
  } catch (...) {  // also out of memory: the call is over either way, and its result's place is forgotten below
    result.error = std::current_exception();
  }
  result.finished = true;
  const std::exception_ptr error = result.error;  // the result goes below, where nobody keeps it
  for (const auto offset : in_flight.temporaries) heap_.free(offset, SharedHeap::Giveback::later);
  ring_.release(id, error);
  if (error && ring_.has_lost_device(id)) end_with_lost_device(error);
}

/// The earliest failure of a rank's own; where a call before this one failed, that one's.
std::exception_ptr SessionCore::failure_of(std::uint64_t id) {
  const auto first = ring_.first_failed_rank(id);
  // Calls that were published by now fail with the same cause; later ones are on their own.
  const bool is_consequence = ring_.is_consequence(id);
  if (!is_consequence) ring_.acknowledge();
  if ((is_consequence || !first) && ring_.last_failure()) return ring_.last_failure();
  return std::make_exception_ptr(first ? report_->failed_call(id, *first) : report_->abandoned_call(id));
}

// ---- deadlines ------------------------------------------------------------------------------------------------

void SessionCore::count_poll() {
  const auto counted = ring_.clocks().poll(pool_->awake_time(Clock::now()));
  if (const auto expired = ring_.count_waited(counted)) expire(*expired);
}

void SessionCore::expire(std::uint64_t id) {
  if (pool_->is_debugged()) return ring_.clocks().restart(id);
  end_with(report_->late_call(id));
}

}  // namespace syncrun::detail

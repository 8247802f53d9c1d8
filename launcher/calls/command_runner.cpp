#include "launcher/calls/command_runner.hpp"

#include "common/text/errors.hpp"
#include "launcher/calls/call_limits.hpp"

namespace syncrun::detail {

namespace {

/// The error that ends the session when a GPU has lost its context. Its worker can compute nothing any more.
Error lost_device_error(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {ErrorKind::cuda, text_of(error)};
  }
}

}  // namespace

CommandRunner::CommandRunner(const Parts& parts)
    : SystemCommands(parts.memory, parts.ring, parts.devices),
      control_(parts.pool.control()),
      pool_(parts.pool),
      ring_(parts.ring),
      report_(parts.report),
      state_(parts.state),
      ends_(parts.ends),
      profiler_(parts.profiler),
      call_timeout_(parts.call_timeout),
      policy_(WaitPolicy::for_processes(control_.world_size() + 1, usable_cores())),
      outputs_(parts.memory.segment, control_) {}

CommandHead& CommandRunner::next_command() {
  if (!ring_.is_predecessor_drained()) drain(ring_.predecessor());
  if (!ring_.is_predecessor_passed()) await_passed(ring_.predecessor());
  return ring_.next(call_timeout_);
}

/// Waits until every rank has passed a command that is drained. Ranks that took no part in it only have to look at it.
void CommandRunner::await_passed(std::uint64_t id) {
  auto& header = control_.header();
  const auto have_passed = [&] { return ring_.have_all_passed(id); };
  const auto lost = [&] { return has_lost_worker(); };
  const auto look = [this](Clock::time_point now) { report_.look(now); };
  while (!ring_.is_predecessor_passed()) {
    CallLimits limits(ring_);
    Patience patience(call_timeout_);
    EitherLimit<CallLimits, Patience> either{limits, patience};
    switch (wait_until(header.to_master, policy_, either, have_passed, lost, look)) {
      case Woken::interrupted:
        ends_.end_with_loss(ring_.oldest());
        continue;  // every rank has now passed all published commands
      case Woken::expired:
        if (limits.expired()) expire(*limits.expired());
        else if (!pool_.is_debugged()) ends_.end_with(report_.late_passing(id, call_timeout_));
        continue;
      case Woken::ready: break;
    }
    ring_.note_passed(id);
    limits.end();
  }
}

std::uint64_t CommandRunner::publish() {
  if (profiler_) [[unlikely]]
    profiler_->begin(ring_.last_published() + 1, ring_.name_of(ring_.last_published() + 1));
  return ring_.publish();
}

void CommandRunner::run_system(const char* what, const std::string& subject, const Fill& fill) {
  drain_all();  // needed so that all workers see the command at the same place among the calls in flight
  CommandHead& command = next_command();
  InFlight& in_flight = ring_.next_in_flight();
  CallResult result;
  in_flight.result = &result;
  in_flight.what = what;
  in_flight.subject = subject;
  try {
    fill(command, in_flight);
  } catch (...) {
    for (const auto offset : in_flight.temporaries) heap().free(offset, SharedHeap::Giveback::later);
    in_flight.reset();
    throw;
  }
  drain(publish());
  if (result.error) std::rethrow_exception(result.error);
}

void CommandRunner::drain(std::uint64_t last) {
  auto& header = control_.header();
  while (ring_.last_drained() < last) {
    const std::uint64_t id = ring_.oldest();
    CallLimits limits(ring_);
    const auto lost = [this] { return has_lost_worker(); };
    const auto look = [this](Clock::time_point now) { report_.look(now); };
    switch (wait_until(header.to_master, policy_, limits, ring_.completion_of(id), lost, look)) {
      case Woken::interrupted: ends_.end_with_loss(id); continue;  // the worker was replaced, and nothing is in flight
      case Woken::expired: expire(*limits.expired()); continue;
      case Woken::ready: break;
    }
    if (id != ring_.last_published()) limits.end();  // if it is the last one, no clock runs any more
    collect(id);
  }
}

void CommandRunner::collect(std::uint64_t id) {
  ring_.retire(id);
  const Command& command = control_.command(id);
  InFlight& in_flight = ring_.in_flight(id);
  if (profiler_) [[unlikely]]
    profiler_->end(id);
  CallResult unwanted;
  CallResult& result = in_flight.result != nullptr ? *in_flight.result : unwanted;
  try {
    if (ring_.has_failed(id)) {
      result.error = failure_of(id);
    } else if (in_flight.function) {
      if (command.ranks == ring_.all_ranks()) in_flight.function->came_through_after = replacements();
      if (command.call().outputs_count != 0) outputs_.collect(id, *in_flight.function, result);
    }
    // Also if out of memory. The call is over in any case, and the place of its result is forgotten below.
  } catch (...) {
    result.error = std::current_exception();
  }
  result.finished = true;
  const std::exception_ptr error = result.error;  // release() below destroys the result if the program has dropped it
  for (const auto offset : in_flight.temporaries) heap().free(offset, SharedHeap::Giveback::later);
  ring_.release(id, error);
  if (error && ring_.has_lost_device(id)) ends_.end_with(lost_device_error(error));
}

/// The earliest failure that a rank had by itself. If an earlier call failed, the failure of that call.
std::exception_ptr CommandRunner::failure_of(std::uint64_t id) {
  const auto first = ring_.first_failed_rank(id);
  // Calls that have been published by now fail with the same cause. Later calls are not affected.
  const bool is_consequence = ring_.is_consequence(id);
  if (!is_consequence) ring_.acknowledge();
  if ((is_consequence || !first) && ring_.last_failure()) return ring_.last_failure();
  return std::make_exception_ptr(first ? report_.failed_call(id, *first) : report_.abandoned_call(id));
}

// ---- deadlines ------------------------------------------------------------------------------------------------

void CommandRunner::count_poll() {
  const auto counted = ring_.clocks().poll(pool_.awake_time(Clock::now()));
  if (const auto expired = ring_.count_waited(counted)) expire(*expired);
}

void CommandRunner::expire(std::uint64_t id) {
  if (pool_.is_debugged()) return ring_.clocks().restart(id);
  ends_.end_with(report_.late_call(id));
}

}  // namespace syncrun::detail

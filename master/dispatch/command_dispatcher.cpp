#include "master/dispatch/command_dispatcher.hpp"

#include <algorithm>
#include <cstring>

#include "common/arrays/extents.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "master/dispatch/call_limits.hpp"
#include "master/dispatch/pool_wait.hpp"
#include "master/values/value_copies.hpp"

namespace syncrun::detail::master::dispatch {

CommandDispatcher::CommandDispatcher(const Parts& parts)
    : calls::SystemCommands(parts.memory, parts.calls, parts.devices),
      control_(parts.pool.control()),
      pool_(parts.pool),
      calls_(parts.calls),
      report_(parts.report),
      state_(parts.state),
      ends_(parts.ends),
      profiler_(parts.profiler),
      call_timeout_(parts.call_timeout),
      policy_(parts.pool.wait_policy()),
      outputs_(parts.memory.segment, control_) {}

protocol::CommandHead& CommandDispatcher::next_command(const protocol::RankSet& ranks) {
  if (!calls_.is_idle()) make_room(ranks);
  return calls_.next(ranks, call_timeout_);
}

bool CommandDispatcher::make_room(const protocol::RankSet& ranks) {
  waits().note_wait();  // also if there is room
  bool waited = false;
  while (const auto blocker = calls_.blocker(ranks)) {
    await(*blocker);
    waited = true;
  }
  return waited;
}

CommandDispatcher::Pause::Pause(CommandDispatcher& commands)
    : commands_(commands), aside_(commands.calls_.set_aside()) {}

CommandDispatcher::Pause::~Pause() {
  if (!is_over_) commands_.calls_.take_up(aside_);
}

void CommandDispatcher::Pause::end() noexcept {
  commands_.calls_.take_up(aside_);
  is_over_ = true;
}

void CommandDispatcher::discard_next() noexcept {
  calls::InFlight& in_flight = calls_.next_in_flight();
  for (const auto offset : in_flight.temporaries) heap().free(offset, os::SharedHeap::Giveback::later);
  in_flight.reset();
}

std::uint64_t CommandDispatcher::publish() {
  calls::InFlight& in_flight = calls_.next_in_flight();
  try {
    if (profiler_) [[unlikely]]
      profiler_->begin(calls_.last_published() + 1, in_flight.name(), waited_for(in_flight));
    if (!in_flight.dependencies.empty()) write_dependencies();
  } catch (...) {
    discard_next();
    throw;
  }
  const std::uint64_t id = calls_.publish();
  waits().note_wait();  // the room for this command is used
  try {
    pool_.publish(id, calls_.entries().back().slot);
  } catch (const Error& error) {  // nothing is known about the other nodes any more
    ends_.end_with(error);
  }
  return id;
}

/// Tells the pool which commands have to fail, because one on which they depend has failed.
void CommandDispatcher::note_spoiled() {
  for (const calls::CommandTable::Entry& entry : calls_.entries()) {
    const bool is_spoiled = control_.command_in(entry.slot).spoiled.load(std::memory_order_relaxed) == entry.id;
    if (is_spoiled) pool_.spoil(entry.id, entry.slot);
  }
}

void CommandDispatcher::check_nodes() {
  if (const auto failure = pool_.watch_failure()) ends_.end_with(*failure);
}

/// The commands of other ranks for which the next command waits: "move of x on rank 1".
std::vector<std::string> CommandDispatcher::waited_for(const calls::InFlight& next) const {
  std::vector<std::string> commands;
  for (const calls::EarlierCommand& earlier : next.dependencies) {
    if (earlier.rank == protocol::Dependency::kOwnRank || !calls_.is_in_flight(earlier.id)) continue;
    commands.push_back(calls_.name_of(earlier.id) + " on rank " + std::to_string(earlier.rank));
  }
  return commands;
}

/// How many bytes a move has brought to its rank, or to the host. Empty if the command is not a move.
std::optional<std::size_t> CommandDispatcher::moved_bytes(const calls::InFlight& command) const {
  if (command.brings_to.is_none()) return std::nullopt;
  const records::VariableRecord& variable = *command.arguments[0].variable;
  const auto rank = command.brings_to.rank();
  const auto* const copies = segment().at<protocol::VariableEntry>(variable.entry)->copies();
  const Extents& extents = rank ? copies[*rank].extents : variable.value->extents;
  return arrays::elements_in({extents.data(), variable.dimensions}) * size_of(variable.dtype);
}

void CommandDispatcher::write_dependencies() {
  calls::InFlight& in_flight = calls_.next_in_flight();
  const std::size_t count = in_flight.dependencies.size();
  const auto offset =
      memory().allocate(count * sizeof(protocol::Dependency), "the dependencies of a call", in_flight.temporaries);
  auto* to = segment().at<protocol::Dependency>(offset);
  for (const calls::EarlierCommand& earlier : in_flight.dependencies) {
    *to++ = {earlier.id, earlier.must_succeed() ? calls_.slot_of(earlier.id) : protocol::Dependency::kOnlyReads,
             earlier.rank};
  }
  calls_.set_dependencies(offset, count);
}

void CommandDispatcher::fill_in(const records::Room& room, const char* what, const std::string& subject,
                                const Fill& fill) {
  room.check();
  protocol::CommandHead& command = calls_.next(room.ranks(), call_timeout_);
  calls::InFlight& in_flight = calls_.next_in_flight();
  in_flight.what = what;
  in_flight.subject = subject;
  try {
    fill(command, in_flight);
  } catch (...) {
    discard_next();
    throw;
  }
}

void CommandDispatcher::run_system(const records::Room& room, const char* what, const std::string& subject,
                                   const Fill& fill) {
  fill_in(room, what, subject, fill);
  CallResult result;
  calls_.next_in_flight().result = &result;
  await(publish());
  if (!result.error) return;
  calls_.failures().has_surfaced(result.error);
  std::rethrow_exception(result.error);
}

std::uint64_t CommandDispatcher::launch_system(const records::Room& room, const char* what, const std::string& subject,
                                               const Fill& fill) {
  fill_in(room, what, subject, fill);
  calls::InFlight& in_flight = calls_.next_in_flight();
  in_flight.kept_result = std::make_shared<CallResult>();  // as if the program had dropped its future
  in_flight.result = in_flight.kept_result.get();
  return publish();
}

// ---- waiting --------------------------------------------------------------------------------------------------

template <class Ready>
os::Woken CommandDispatcher::wait(CallLimits& limits, Ready&& ready) {
  const auto lost = [this] { return has_lost_worker(); };
  const auto look = [this](os::Clock::time_point now) { report_.look(now); };
  return wait_until(pool_, pool::WorkerPool::Awaited::call, policy_, limits, ready, lost, look);
}

/// Returns if the worker was replaced. Then nothing is in flight.
void CommandDispatcher::end_with_loss(std::uint64_t id) {
  waits().note_change();
  comms().set_linked({});  // the new worker has no connections
  ends_.end_with_loss(id);
}

void CommandDispatcher::await(std::uint64_t id) {
  waits().note_wait();
  while (calls_.is_in_flight(id)) {
    const auto& dependencies = calls_.in_flight(id).dependencies;
    const auto earlier = std::find_if(
        dependencies.begin(), dependencies.end(),
        [this](const calls::EarlierCommand& other) { return other.must_succeed() && calls_.is_in_flight(other.id); });
    if (earlier != dependencies.end()) {
      await(earlier->id);
      continue;
    }
    CallLimits limits(calls_);
    switch (wait(limits, calls_.completion_of(id))) {
      case os::Woken::interrupted: end_with_loss(id); continue;
      case os::Woken::expired: expire(*limits.expired()); continue;
      case os::Woken::ready: break;
    }
    if (is_lost(id)) {
      end_with_loss(id);
      continue;
    }
    if (calls_.entries().size() > 1) limits.end();  // if it is the only one, no clock runs any more
    collect(id);
  }
}

std::size_t CommandDispatcher::await_any(std::span<CallResult* const> results) {
  waits().note_wait();
  for (;;) {
    if (const auto first = first_over(results)) {
      if (const auto id = calls_.command_of(*results[*first])) await(*id);
      return *first;
    }
    CallLimits limits(calls_);
    const auto ready = [&] { return first_over(results).has_value(); };
    switch (wait(limits, ready)) {
      case os::Woken::interrupted: end_with_loss(calls_.entries().front().id); continue;
      case os::Woken::expired: expire(*limits.expired()); continue;
      case os::Woken::ready: break;
    }
    limits.end();
  }
}

/// The position of the first call that has its result, or can be collected.
std::optional<std::size_t> CommandDispatcher::first_over(std::span<CallResult* const> results) const {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] == nullptr) continue;
    const auto id = calls_.command_of(*results[i]);
    if (results[i]->finished || (id && calls_.is_collectable(*id))) return i;
  }
  return std::nullopt;
}

void CommandDispatcher::drain_all() {
  waits().note_wait();
  while (!calls_.is_idle()) await(calls_.entries().front().id);
}

void CommandDispatcher::await_users(const void* record) {
  waits().note_wait();
  while (const auto user = calls_.first_user(record)) await(*user);
}

/// True if the survivors of a loss have given the command up. await() then deals with the loss.
bool CommandDispatcher::is_lost(std::uint64_t id) const noexcept {
  return has_lost_worker() && calls_.was_given_up(id);
}

void CommandDispatcher::collect_complete() {
  waits().note_wait();
  // A command comes after those on which it depends, so one pass is enough.
  for (std::size_t i = 0; i < calls_.entries().size();) {
    const std::uint64_t id = calls_.entries()[i].id;
    if (calls_.is_complete(id) && calls_.is_independent(id) && !is_lost(id)) collect(id);
    else ++i;
  }
}

bool CommandDispatcher::has_made_large_values() {
  // The memory of smaller Values is not worth a command of its own.
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 20U;
  while (const auto maker = calls_.maker_after(looked_at_)) {
    if (!calls_.is_complete(*maker)) return false;
    looked_at_ = *maker;
    std::uint64_t bytes = 0;
    for (const auto& value : calls_.in_flight(*maker).made) {
      const protocol::VariableCopy* const copies = segment().at<protocol::VariableEntry>(value->entry)->copies();
      for (const int rank : calls_.command(*maker).ranks) bytes += copies[rank].capacity_bytes;
    }
    if (bytes >= kLarge) return true;
  }
  return false;
}

// ---- results --------------------------------------------------------------------------------------------------

void CommandDispatcher::collect(std::uint64_t id) {
  const protocol::Command& command = calls_.command(id);
  calls::InFlight& call = calls_.in_flight(id);
  if (profiler_) [[unlikely]]
    profiler_->end(id, moved_bytes(call));
  if (calls::CommandTable::has_failed(command, call)) [[unlikely]]
    return collect_failure(id, failure_of(id));
  const bool is_function = call.function != nullptr;
  if (is_function && command.ranks.count() == control_.world_size()) call.function->came_through_after = replacements();
  if (call.fetched != 0 || (is_function && command.call().outputs_count != 0)) {
    try {
      fetch_outputs(command, call);
    } catch (...) {  // out of memory; the call is over in any case, and the place of its result is forgotten below
      return collect_failure(id, std::current_exception());
    }
  }
  if (call.result != nullptr) call.result->finished = true;
  retire(id, nullptr);
}

void CommandDispatcher::fetch_outputs(const protocol::Command& command, calls::InFlight& call) {
  CallResult unwanted;
  CallResult& result = call.result != nullptr ? *call.result : unwanted;
  if (call.fetched == 0) return outputs_.collect(command, *call.function, result);
  const OutputBuffer& to = result.outputs.front().buffer;
  std::memcpy(to.data(), segment().at(call.fetched), to.bytes());
}

void CommandDispatcher::collect_failure(std::uint64_t id, const std::exception_ptr& error) {
  waits().note_change();
  const protocol::Command& command = calls_.command(id);
  const calls::InFlight& call = calls_.in_flight(id);
  const bool has_lost_device = calls::CommandTable::has_failed(command, call) && calls_.has_lost_device(id);
  if (call.result != nullptr) {
    call.result->fail(error);
    call.result->finished = true;
  }
  const auto failure = note_failure(id, error);
  calls::CommandTable::for_each_value(call, [&](const std::shared_ptr<records::VariableRecord>& value,
                                                records::Destination to) { value->note_unfinished(to, id, error); });
  if (call.constructed) call.constructed->failure = error;
  if (command.comm.is_linked()) comms().set_linked({});  // a connection may have broken
  retire(id, failure);
  note_spoiled();
  // A GPU has lost its context, so its worker can compute nothing any more.
  if (has_lost_device) ends_.end_with(text::as_error(error, ErrorKind::cuda));
}

/// Ends a command whose result has been handed out. Frees the result if the program has dropped it.
void CommandDispatcher::retire(std::uint64_t id, const std::shared_ptr<records::CallFailure>& failure) {
  const calls::InFlight& in_flight = calls_.in_flight(id);
  for (const auto offset : in_flight.temporaries) heap().free(offset, os::SharedHeap::Giveback::later);
  const records::Destination to = in_flight.brings_to;
  if (to.is_none()) return calls_.release(id, failure);
  const std::shared_ptr<records::VariableRecord> variable = in_flight.arguments[0].variable;
  calls_.release(id, failure);
  if (variable->value && variable.use_count() > 1) values::note_arrival(*this, *variable, to);
}

/// What the call wrote, and its future if it has one, remember the failure until the program has seen it.
std::shared_ptr<records::CallFailure> CommandDispatcher::note_failure(std::uint64_t id,
                                                                      const std::exception_ptr& error) {
  const calls::InFlight& call = calls_.in_flight(id);
  const auto failure = call.inherited ? call.inherited : calls_.failures().note(error);
  call.for_each_written([&](records::WriteLog& writes) {
    if (id > writes.replaced_after) writes.failures.push_back({calls_.command(id).ranks, failure});
  });
  if (call.kept_result && !failure->is_seen) calls_.failures().note_unfetched(failure->error, call.kept_result);
  return failure;
}

/// The earliest failure that a rank had by itself. Otherwise the failure of the command on which this one depends.
std::exception_ptr CommandDispatcher::failure_of(std::uint64_t id) {
  if (const auto& inherited = calls_.in_flight(id).inherited) return inherited->error;
  const auto first = calls_.first_failed_rank(id);
  return std::make_exception_ptr(first ? report_.failed_call(id, *first) : report_.abandoned_call(id));
}

// ---- deadlines ------------------------------------------------------------------------------------------------

void CommandDispatcher::count_poll() {
  const auto counted = calls_.clocks().poll(pool_.awake_time(os::Clock::now()));
  if (const auto expired = calls_.count_waited(counted)) expire(*expired);
}

void CommandDispatcher::expire(std::uint64_t id) {
  if (pool_.is_debugged()) return calls_.restart_clock(id);
  ends_.end_with(report_.late_call(id));
}

}  // namespace syncrun::detail::master::dispatch

#include "launcher/commands/command_runner.hpp"

#include <algorithm>
#include <cstring>

#include "common/arrays/extents.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "launcher/commands/call_limits.hpp"
#include "launcher/nodes/remote_nodes.hpp"
#include "launcher/values/value_copies.hpp"

namespace syncrun::detail {

namespace {

/// The limits of a wait that handles messages of other nodes.
struct ShortNaps {
  CallLimits& limits;
  WorkerPool& pool;
  bool is_over(Clock::time_point now) const { return limits.is_over(now); }
  Clock::duration nap(Clock::duration longest) const {
    return limits.nap(std::min<Clock::duration>(longest, pool.longest_nap(WorkerPool::Awaited::call)));
  }
};

}  // namespace

CommandRunner::CommandRunner(const Parts& parts)
    : SystemCommands(parts.memory, parts.calls, parts.devices),
      control_(parts.pool.control()),
      pool_(parts.pool),
      nodes_(parts.pool.other_nodes()),
      calls_(parts.calls),
      report_(parts.report),
      state_(parts.state),
      ends_(parts.ends),
      profiler_(parts.profiler),
      call_timeout_(parts.call_timeout),
      policy_(nodes_ == nullptr ? WaitPolicy::for_processes(control_.world_size() + 1, usable_cores())
                                : WaitPolicy::for_nodes(control_.header().place.local_size + 1, usable_cores())),
      outputs_(parts.memory.segment, control_) {}

CommandHead& CommandRunner::next_command(const RankSet& ranks) {
  if (!calls_.is_idle()) make_room(ranks);
  return calls_.next(ranks, call_timeout_);
}

bool CommandRunner::make_room(const RankSet& ranks) {
  waits().note_wait();  // also if there is room
  bool waited = false;
  while (const auto blocker = calls_.blocker(ranks)) {
    await(*blocker);
    waited = true;
  }
  return waited;
}

CommandRunner::Pause::Pause(CommandRunner& commands) : commands_(commands), aside_(commands.calls_.set_aside()) {}

CommandRunner::Pause::~Pause() {
  if (!is_over_) commands_.calls_.take_up(aside_);
}

void CommandRunner::Pause::end() noexcept {
  commands_.calls_.take_up(aside_);
  is_over_ = true;
}

void CommandRunner::discard_next() noexcept {
  InFlight& in_flight = calls_.next_in_flight();
  for (const auto offset : in_flight.temporaries) heap().free(offset, SharedHeap::Giveback::later);
  in_flight.reset();
}

std::uint64_t CommandRunner::publish() {
  InFlight& in_flight = calls_.next_in_flight();
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
  if (nodes_ != nullptr) [[unlikely]]
    give_to_nodes(id);
  return id;
}

/// If the transport fails, nothing is known about the other nodes any more.
void CommandRunner::give_to_nodes(std::uint64_t id) {
  try {
    nodes_->publish(id, calls_.slot_of(id));
  } catch (const Error& error) {
    ends_.end_with(error);
  }
}

/// Tells the other nodes which commands have to fail, because one on which they depend has failed.
void CommandRunner::spoil_on_nodes() {
  for (const CallTable::Entry& entry : calls_.entries()) {
    const bool is_spoiled = control_.command_in(entry.slot).spoiled.load(std::memory_order_relaxed) == entry.id;
    if (is_spoiled) nodes_->spoil(entry.id, entry.slot);
  }
}

void CommandRunner::check_nodes() {
  if (const auto failure = pool_.watch_failure()) ends_.end_with(*failure);
}

/// A waiter calls it often. If there are other nodes, it also handles what has come from them.
bool CommandRunner::look_for_loss() {
  if (nodes_ != nullptr) [[unlikely]]
    pool_.progress();
  return has_lost_worker();
}

/// The commands of other ranks for which the next command waits: "move of x on rank 1".
std::vector<std::string> CommandRunner::waited_for(const InFlight& next) const {
  std::vector<std::string> commands;
  for (const EarlierCommand& earlier : next.dependencies) {
    if (earlier.rank == Dependency::kOwnRank || !calls_.is_in_flight(earlier.id)) continue;
    commands.push_back(calls_.name_of(earlier.id) + " on rank " + std::to_string(earlier.rank));
  }
  return commands;
}

/// How many bytes a move has brought to its rank, or to the host. Empty if the command is not a move.
std::optional<std::size_t> CommandRunner::moved_bytes(const InFlight& command) const {
  if (command.brings_to.is_none()) return std::nullopt;
  const auto& variable = *static_cast<const VariableRecord*>(command.arguments[0].get());
  const auto rank = command.brings_to.rank();
  const auto* const copies = segment().at<VariableEntry>(variable.entry)->copies();
  const Extents& extents = rank ? copies[*rank].extents : variable.value->extents;
  return elements_in({extents.data(), variable.dimensions}) * size_of(variable.dtype);
}

void CommandRunner::write_dependencies() {
  InFlight& in_flight = calls_.next_in_flight();
  const std::size_t count = in_flight.dependencies.size();
  const auto offset =
      heap().allocate(count * sizeof(Dependency), SharedHeap::Contents::any, "the dependencies of a call");
  in_flight.temporaries.push_back(offset);
  auto* to = segment().at<Dependency>(offset);
  for (const EarlierCommand& earlier : in_flight.dependencies) {
    *to++ = {earlier.id, earlier.must_succeed() ? calls_.slot_of(earlier.id) : Dependency::kOnlyReads, earlier.rank};
  }
  calls_.set_dependencies(offset, count);
}

void CommandRunner::fill_in(const Room& room, const char* what, const std::string& subject, const Fill& fill) {
  room.check();
  CommandHead& command = calls_.next(room.ranks(), call_timeout_);
  InFlight& in_flight = calls_.next_in_flight();
  in_flight.what = what;
  in_flight.subject = subject;
  try {
    fill(command, in_flight);
  } catch (...) {
    discard_next();
    throw;
  }
}

void CommandRunner::run_system(const Room& room, const char* what, const std::string& subject, const Fill& fill) {
  fill_in(room, what, subject, fill);
  CallResult result;
  calls_.next_in_flight().result = &result;
  await(publish());
  if (!result.error) return;
  calls_.failures().has_surfaced(result.error);
  std::rethrow_exception(result.error);
}

std::uint64_t CommandRunner::launch_system(const Room& room, const char* what, const std::string& subject,
                                           const Fill& fill) {
  fill_in(room, what, subject, fill);
  InFlight& in_flight = calls_.next_in_flight();
  in_flight.kept_result = std::make_shared<CallResult>();  // as if the program had dropped its future
  in_flight.result = in_flight.kept_result.get();
  return publish();
}

// ---- waiting --------------------------------------------------------------------------------------------------

/// If there are other nodes, this thread also handles what comes from them, and nobody rings for that. So its sleeps are
/// short.
template <class Ready>
Woken CommandRunner::wait(CallLimits& limits, Ready&& ready) {
  Doorbell& bell = control_.header().to_master;
  const auto lost = [this] { return look_for_loss(); };
  const auto look = [this](Clock::time_point now) { report_.look(now); };
  if (nodes_ == nullptr) return wait_until(bell, policy_, limits, ready, lost, look);
  const ShortNaps naps{limits, pool_};
  return wait_until(bell, policy_, naps, ready, lost, look);
}

/// Returns if the worker was replaced. Then nothing is in flight.
void CommandRunner::end_with_loss(std::uint64_t id) {
  waits().note_change();
  ends_.end_with_loss(id);
}

void CommandRunner::await(std::uint64_t id) {
  waits().note_wait();
  while (calls_.is_in_flight(id)) {
    const auto& dependencies = calls_.in_flight(id).dependencies;
    const auto earlier = std::find_if(dependencies.begin(), dependencies.end(), [this](const EarlierCommand& other) {
      return other.must_succeed() && calls_.is_in_flight(other.id);
    });
    if (earlier != dependencies.end()) {
      await(earlier->id);
      continue;
    }
    CallLimits limits(calls_);
    switch (wait(limits, calls_.completion_of(id))) {
      case Woken::interrupted: end_with_loss(id); continue;
      case Woken::expired: expire(*limits.expired()); continue;
      case Woken::ready: break;
    }
    if (is_lost(id)) {
      end_with_loss(id);
      continue;
    }
    if (calls_.entries().size() > 1) limits.end();  // if it is the only one, no clock runs any more
    collect(id);
  }
}

std::size_t CommandRunner::await_any(std::span<CallResult* const> results) {
  waits().note_wait();
  for (;;) {
    if (const auto first = first_over(results)) {
      if (const auto id = calls_.command_of(*results[*first])) await(*id);
      return *first;
    }
    CallLimits limits(calls_);
    const auto ready = [&] { return first_over(results).has_value(); };
    switch (wait(limits, ready)) {
      case Woken::interrupted: end_with_loss(calls_.entries().front().id); continue;
      case Woken::expired: expire(*limits.expired()); continue;
      case Woken::ready: break;
    }
    limits.end();
  }
}

/// The position of the first call that has its result, or can be collected.
std::optional<std::size_t> CommandRunner::first_over(std::span<CallResult* const> results) const {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] == nullptr) continue;
    const auto id = calls_.command_of(*results[i]);
    if (results[i]->finished || (id && calls_.is_collectable(*id))) return i;
  }
  return std::nullopt;
}

void CommandRunner::drain_all() {
  waits().note_wait();
  while (!calls_.is_idle()) await(calls_.entries().front().id);
}

void CommandRunner::await_users(const void* record) {
  waits().note_wait();
  while (const auto user = calls_.first_user(record)) await(*user);
}

/// True if the survivors of a loss have given the command up. await() then deals with the loss.
bool CommandRunner::is_lost(std::uint64_t id) const noexcept { return has_lost_worker() && calls_.was_given_up(id); }

void CommandRunner::collect_complete() {
  waits().note_wait();
  // A command comes after those on which it depends, so one pass is enough.
  for (std::size_t i = 0; i < calls_.entries().size();) {
    const std::uint64_t id = calls_.entries()[i].id;
    if (calls_.is_complete(id) && calls_.is_independent(id) && !is_lost(id)) collect(id);
    else ++i;
  }
}

bool CommandRunner::has_made_large_values() {
  // The memory of smaller Values is not worth a command of its own.
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 20U;
  while (const auto maker = calls_.maker_after(looked_at_)) {
    if (!calls_.is_complete(*maker)) return false;
    looked_at_ = *maker;
    std::uint64_t bytes = 0;
    for (const auto& value : calls_.in_flight(*maker).made) {
      const VariableCopy* const copies = segment().at<VariableEntry>(value->entry)->copies();
      for (const int rank : calls_.command(*maker).ranks) bytes += copies[rank].capacity_bytes;
    }
    if (bytes >= kLarge) return true;
  }
  return false;
}

// ---- results --------------------------------------------------------------------------------------------------

void CommandRunner::collect(std::uint64_t id) {
  const Command& command = calls_.command(id);
  InFlight& call = calls_.in_flight(id);
  if (profiler_) [[unlikely]]
    profiler_->end(id, moved_bytes(call));
  if (CallTable::has_failed(command, call)) [[unlikely]]
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

void CommandRunner::fetch_outputs(const Command& command, InFlight& call) {
  CallResult unwanted;
  CallResult& result = call.result != nullptr ? *call.result : unwanted;
  if (call.fetched == 0) return outputs_.collect(command, *call.function, result);
  const OutputBuffer& to = result.outputs.front().buffer;
  std::memcpy(to.data(), segment().at(call.fetched), to.bytes());
}

void CommandRunner::collect_failure(std::uint64_t id, const std::exception_ptr& error) {
  waits().note_change();
  const Command& command = calls_.command(id);
  const InFlight& call = calls_.in_flight(id);
  const bool has_lost_device = CallTable::has_failed(command, call) && calls_.has_lost_device(id);
  if (call.result != nullptr) {
    call.result->error = error;
    call.result->finished = true;
  }
  const auto failure = note_failure(id, error);
  CallTable::for_each_value(call, [&](const std::shared_ptr<VariableRecord>& value, Destination to) {
    value->note_unfinished(to, id, error);
  });
  if (call.constructed) call.constructed->failure = error;
  retire(id, failure);
  if (nodes_ != nullptr) spoil_on_nodes();
  // A GPU has lost its context, so its worker can compute nothing any more.
  if (has_lost_device) ends_.end_with(as_error(error, ErrorKind::cuda));
}

/// Ends a command whose result has been handed out. Frees the result if the program has dropped it.
void CommandRunner::retire(std::uint64_t id, const std::shared_ptr<CallFailure>& failure) {
  const InFlight& in_flight = calls_.in_flight(id);
  for (const auto offset : in_flight.temporaries) heap().free(offset, SharedHeap::Giveback::later);
  const Destination to = in_flight.brings_to;
  if (to.is_none()) return calls_.release(id, failure);
  const auto variable = std::static_pointer_cast<VariableRecord>(in_flight.arguments[0]);
  calls_.release(id, failure);
  if (variable->value && variable.use_count() > 1) note_arrival(*this, *variable, to);
}

/// What the call wrote, and its future if it has one, remember the failure until the program has seen it.
std::shared_ptr<CallFailure> CommandRunner::note_failure(std::uint64_t id, const std::exception_ptr& error) {
  const InFlight& call = calls_.in_flight(id);
  const auto failure = call.inherited ? call.inherited : calls_.failures().note(error);
  call.for_each_written([&](WriteLog& writes) {
    if (id > writes.replaced_after) writes.failures.push_back({calls_.command(id).ranks, failure});
  });
  if (call.kept_result && !failure->is_seen) calls_.failures().note_unfetched(failure->error, call.kept_result);
  return failure;
}

/// The earliest failure that a rank had by itself. Otherwise the failure of the command on which this one depends.
std::exception_ptr CommandRunner::failure_of(std::uint64_t id) {
  if (const auto& inherited = calls_.in_flight(id).inherited) return inherited->error;
  const auto first = calls_.first_failed_rank(id);
  return std::make_exception_ptr(first ? report_.failed_call(id, *first) : report_.abandoned_call(id));
}

// ---- deadlines ------------------------------------------------------------------------------------------------

void CommandRunner::count_poll() {
  const auto counted = calls_.clocks().poll(pool_.awake_time(Clock::now()));
  if (const auto expired = calls_.count_waited(counted)) expire(*expired);
}

void CommandRunner::expire(std::uint64_t id) {
  if (pool_.is_debugged()) return calls_.restart_clock(id);
  ends_.end_with(report_.late_call(id));
}

}  // namespace syncrun::detail

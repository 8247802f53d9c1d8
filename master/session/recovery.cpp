#include "master/session/recovery.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "master/calls/describe.hpp"
#include "master/session/restored_values.hpp"
#include "master/session/session_start.hpp"

namespace syncrun::detail::master::session {

void Recovery::replace_lost(Failure failure, const std::string& where, int wait_status, os::Milliseconds limit) {
  is_running_ = true;
  calls::CommandTable::Unfinished unfinished;
  std::string outcome;
  try {
    check_count(1);  // fail early, before any wait
    await_survivors(limit);
    const std::vector<int> lost = reap_lost();
    check_count(static_cast<int>(lost.size()));
    replaced_ += static_cast<int>(lost.size());
    collect_whole_calls();
    failure.undefined = parts_.calls.half_written();
    unfinished = parts_.calls.take_unfinished(
        [this](std::uint64_t offset) { parts_.commands.heap().free(offset, os::SharedHeap::Giveback::later); });
    // Before objects are constructed on the new workers. The constructor may be what ended the lost one.
    for (const auto& object : unfinished.objects) object->failure = std::make_exception_ptr(std::exception());
    // Before the copies on lost ranks are forgotten: a copy that has not been brought cannot take their place.
    for (const auto& [variable, to, command] : unfinished.values) {
      if (variable->value) variable->value->drop_unbrought(to, command);
    }
    start_successors(lost);
    pass_on(parts_.commands, parts_.registry, lost, failure);
    for (const int rank : lost) outcome += "\n  " + parts_.report.describe_rank(rank) + " is new";
  } catch (const std::exception& error) {
    const Error over =
        parts_.report.lost(std::move(failure), where + ", and could not be replaced: " + error.what(), wait_status);
    for (const auto& call : unfinished.calls) call.result->fail(std::make_exception_ptr(over));
    throw over;
  }
  is_running_ = false;
  failure.respawned_pid = parts_.pool.pid(failure.rank);
  if (!failure.restored.empty()) outcome += "\n  restored from a peer: " + calls::in_quotes(failure.restored);
  if (!failure.undefined.empty()) outcome += "\n  undefined: " + calls::in_quotes(failure.undefined);
  const auto lost = std::make_exception_ptr(parts_.report.lost(std::move(failure), where, wait_status, outcome));
  for (const auto& [value, to, command] : unfinished.values) value->note_unfinished(to, command, lost);
  // As after any failure: a later call that uses what these calls wrote fails too, until the program has seen the loss.
  const auto known = parts_.calls.failures().note(lost);
  for (const auto& [log, ranks, command] : unfinished.writes) {
    if (command > log->replaced_after) log->failures.push_back({ranks, known});  // else set() has replaced the values
  }
  for (const auto& object : unfinished.objects) object->failure = lost;
  for (const auto& call : unfinished.calls) {
    call.result->fail(lost);
    if (call.kept) parts_.calls.failures().note_unfetched(lost, call.kept);
  }
  if (unfinished.calls.empty()) parts_.calls.failures().note_unfetched(lost, nullptr);  // no call throws it
}

/// Throws Error if replacing `more` workers would exceed the limit.
void Recovery::check_count(int more) const {
  if (replaced_ + more <= most_) return;
  throw Error(ErrorKind::worker_lost,
              "that would be more than " + std::to_string(most_) + " in this session (SessionOptions::max_respawns)");
}

/// Waits until the survivors have finished. Each of them fails when it next meets its peers, or finishes its calls. The
/// deadline is for one call: it begins anew whenever a survivor has finished one.
void Recovery::await_survivors(os::Milliseconds limit) {
  const protocol::ControlBlock& control = parts_.pool.control();
  const auto are_done = [&] { return parts_.calls.are_survivors_done(); };
  os::WaitPolicy policy = os::WaitPolicy::yielding();
  const auto finished = [&] {
    std::uint64_t sum = 0;
    for (const int rank : parts_.calls.all_ranks()) sum += control.worker(rank).done.load(std::memory_order_seq_cst);
    return sum;
  };
  std::uint64_t before = 0;
  std::uint64_t now = finished();
  do {
    before = now;
    os::Patience patience(limit);
    if (os::wait_until(control.header().to_master, policy, patience, are_done, [] { return false; }) ==
        os::Woken::ready)
      return;
    now = finished();
  } while (now != before);
  throw Error(ErrorKind::timeout, "the other workers did not come to the end of their calls within " +
                                      std::to_string(limit.count()) + " ms");
}

std::vector<int> Recovery::reap_lost() {
  std::vector<int> ranks;
  for (int rank = 0; rank < parts_.pool.world_size(); ++rank) {
    if (parts_.pool.control().worker(rank).is_lost.load(std::memory_order_seq_cst) == 0) continue;
    if (!parts_.pool.reap(rank))
      throw Error(ErrorKind::system, parts_.report.describe_rank(rank) + " cannot be killed");
    ranks.push_back(rank);
  }
  return ranks;
}

/// Calls that all of their ranks have completed still get their results: a lost worker may have been ahead, or may have
/// taken no part.
void Recovery::collect_whole_calls() {
  while (const auto id = first_whole_call()) parts_.commands.collect(*id);
}

/// The first call that is over on all of its ranks, other than because of the loss. Calls on which it depends have been
/// collected.
std::optional<std::uint64_t> Recovery::first_whole_call() const {
  for (const calls::CommandTable::Entry& entry : parts_.calls.entries()) {
    if (!parts_.calls.is_independent(entry.id) || !parts_.calls.is_complete(entry.id)) continue;
    if (!parts_.calls.was_given_up(entry.id)) return entry.id;
  }
  return std::nullopt;
}

/// Prepares this node's control block for the new workers. It also prepares the slots of ranks of other nodes, because the
/// master plays the part of their workers there.
std::vector<pool::Successor> Recovery::prepare_successors(const std::vector<int>& lost) {
  std::vector<pool::Successor> successors;
  for (const int rank : lost) {
    forget_copies(parts_.commands.memory(), parts_.registry, rank);
    successors.push_back({rank, parts_.calls.last_published(), parts_.calls.received(rank)});
    pool::prepare_slot(parts_.pool.control(), successors.back());
  }
  pool::forget_peers(parts_.pool.control(), parts_.calls.last_published());
  return successors;
}

void Recovery::start_successors(const std::vector<int>& lost) {
  parts_.pool.replace(prepare_successors(lost));
  await_ready(parts_.pool, parts_.report, parts_.start_timeout);
  for (const int rank : lost) {
    parts_.logger.warn(parts_.report.describe_rank(rank) + " takes the place of a worker that was lost");
    parts_.pool.watch(rank);
  }
}

}  // namespace syncrun::detail::master::session

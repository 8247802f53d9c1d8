#include "launcher/session/recovery.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "launcher/calls/describe.hpp"

namespace syncrun::detail {

Recovery::Recovery(WorkerPool& pool, CallTable& calls, const LossReport& report, Steps steps, int most)
    : pool_(pool), calls_(calls), report_(report), steps_(std::move(steps)), most_(most) {}

void Recovery::replace_lost(Failure failure, const std::string& where, int wait_status, Milliseconds limit) {
  is_running_ = true;
  CallTable::Unfinished unfinished;
  std::string outcome;
  try {
    check_count(1);  // fail early, before any wait
    await_survivors(limit);
    const std::vector<int> lost = reap_lost();
    check_count(static_cast<int>(lost.size()));
    replaced_ += static_cast<int>(lost.size());
    collect_whole_calls();
    failure.undefined = calls_.half_written();
    unfinished = calls_.take_unfinished(steps_.free);
    // Before objects are constructed on the new workers. The constructor may be what ended the lost one.
    for (const auto& object : unfinished.objects) object->failure = std::make_exception_ptr(std::exception());
    // Before the copies on lost ranks are forgotten: a copy that has not been brought cannot take their place.
    for (const auto& [variable, to, command] : unfinished.values) {
      if (variable->value) variable->value->drop_unbrought(to, command);
    }
    pool_.replace(prepare_successors(lost));
    steps_.await_ready(lost);
    for (const int rank : lost) pool_.watch(rank);
    steps_.pass_on(lost, failure);
    for (const int rank : lost) outcome += "\n  " + report_.describe_rank(rank) + " is new";
  } catch (const std::exception& error) {
    const Error over =
        report_.lost(std::move(failure), where + ", and could not be replaced: " + error.what(), wait_status);
    for (const auto& call : unfinished.calls) call.result->error = std::make_exception_ptr(over);
    throw over;
  }
  is_running_ = false;
  failure.respawned_pid = pool_.pid(failure.rank);
  if (!failure.restored.empty()) outcome += "\n  restored from a peer: " + in_quotes(failure.restored);
  if (!failure.undefined.empty()) outcome += "\n  undefined: " + in_quotes(failure.undefined);
  const auto lost = std::make_exception_ptr(report_.lost(std::move(failure), where, wait_status, outcome));
  for (const auto& [value, to, command] : unfinished.values) value->note_unfinished(to, command, lost);
  // As after any failure: a later call that uses what these calls wrote fails too, until the program has seen the loss.
  const auto known = calls_.failures().note(lost);
  for (const auto& [log, ranks, command] : unfinished.writes) {
    if (command > log->replaced_after) log->failures.push_back({ranks, known});  // else set() has replaced the values
  }
  for (const auto& object : unfinished.objects) object->failure = lost;
  for (const auto& call : unfinished.calls) {
    call.result->error = lost;
    if (call.kept) calls_.failures().note_unfetched(lost, call.kept);
  }
  if (unfinished.calls.empty()) calls_.failures().note_unfetched(lost, nullptr);  // no call throws it
}

/// Throws Error if replacing `more` workers would exceed the limit.
void Recovery::check_count(int more) const {
  if (replaced_ + more <= most_) return;
  throw Error(ErrorKind::worker_lost,
              "that would be more than " + std::to_string(most_) + " in this session (SessionOptions::max_respawns)");
}

/// Waits until the survivors have finished. Each of them fails when it next meets its peers, or finishes its calls. The
/// deadline is for one call: it begins anew whenever a survivor has finished one.
void Recovery::await_survivors(Milliseconds limit) {
  const ControlBlock& control = pool_.control();
  const auto are_done = [&] { return calls_.are_survivors_done(); };
  WaitPolicy policy = WaitPolicy::yielding();
  const auto finished = [&] {
    std::uint64_t sum = 0;
    for (const int rank : calls_.all_ranks()) sum += control.worker(rank).done.load(std::memory_order_seq_cst);
    return sum;
  };
  std::uint64_t before = 0;
  std::uint64_t now = finished();
  do {
    before = now;
    Patience patience(limit);
    if (wait_until(control.header().to_master, policy, patience, are_done, [] { return false; }) == Woken::ready)
      return;
    now = finished();
  } while (now != before);
  throw Error(ErrorKind::timeout, "the other workers did not come to the end of their calls within " +
                                      std::to_string(limit.count()) + " ms");
}

std::vector<int> Recovery::reap_lost() {
  std::vector<int> ranks;
  for (int rank = 0; rank < pool_.world_size(); ++rank) {
    if (pool_.control().worker(rank).is_lost.load(std::memory_order_seq_cst) == 0) continue;
    if (!pool_.reap(rank)) throw Error(ErrorKind::system, report_.describe_rank(rank) + " cannot be killed");
    ranks.push_back(rank);
  }
  return ranks;
}

/// Calls that all of their ranks have completed still get their results: a lost worker may have been ahead, or may have
/// taken no part.
void Recovery::collect_whole_calls() {
  while (const auto id = first_whole_call()) steps_.collect(*id);
}

/// The first call that is over on all of its ranks, other than because of the loss. Calls on which it depends have been
/// collected.
std::optional<std::uint64_t> Recovery::first_whole_call() const {
  for (const CallTable::Entry& entry : calls_.entries()) {
    if (!calls_.is_independent(entry.id) || !calls_.is_complete(entry.id)) continue;
    if (!calls_.was_given_up(entry.id)) return entry.id;
  }
  return std::nullopt;
}

/// Prepares this node's control block for the new workers. It also prepares the slots of ranks of other nodes, because the
/// master plays the part of their workers there.
std::vector<Successor> Recovery::prepare_successors(const std::vector<int>& lost) {
  std::vector<Successor> successors;
  for (const int rank : lost) {
    steps_.forget_copies(rank);
    successors.push_back({rank, calls_.last_published(), calls_.received(rank)});
    prepare_slot(pool_.control(), successors.back());
  }
  forget_peers(pool_.control(), calls_.last_published());
  return successors;
}

}  // namespace syncrun::detail

// SessionOptions::on_worker_lost = respawn: the calls in flight fail, a new worker takes the rank of the lost one, and
// gets of what that had what can be had again.
//
//   a loss is seen --> every survivor is done with what was published (it fails there) --> the lost are buried
//     --> their slots are cleared, the loss is forgotten --> new workers are born, and ready
//     --> variables from a peer, objects by their constructors --> the calls' error is there; the session is open
//
// Whatever goes wrong on the way, another loss included, ends the session with the first loss for its cause.

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/errors.hpp"
#include "common/life.hpp"
#include "launcher/describe.hpp"
#include "launcher/session_core.hpp"
#include "launcher/variables.hpp"

namespace syncrun::detail {

bool SessionCore::may_replace() const noexcept {
  return settings_.on_worker_lost == OnWorkerLost::respawn && !is_closing_ && state_ == State::open;
}

void SessionCore::replace_lost(Failure failure, const std::string& where, int status, Milliseconds limit) {
  const std::string who = describe_rank(failure.rank);
  is_closing_ = true;
  std::vector<Stranded> stranded;
  std::string report;
  try {
    check_respawns(1);  // before anything is waited for
    await_survivors(limit);
    const std::vector<int> lost = lost_ranks();
    check_respawns(static_cast<int>(lost.size()));
    respawns_ += static_cast<int>(lost.size());
    collect_whole_calls();
    failure.undefined = half_written_since(drained_ + 1);
    stranded = strand_calls();
    bear_anew(lost);
    pass_on(lost, failure);
    for (const int rank : lost) report += "\n  " + describe_rank(rank) + " is new";
  } catch (const std::exception& error) {
    const Error over =
        lost_error(who, std::move(failure), where + ", and could not be replaced: " + error.what(), status, "");
    for (const Stranded& call : stranded) call.result->error = std::make_exception_ptr(over);
    end_with(over);
  }
  is_closing_ = false;
  failure.respawned_pid = nursery_->pid(failure.rank);
  if (!failure.restored.empty()) report += "\n  restored from a peer: " + in_quotes(failure.restored);
  if (!failure.undefined.empty()) report += "\n  undefined: " + in_quotes(failure.undefined);
  last_failure_ = std::make_exception_ptr(lost_error(who, std::move(failure), where, status, report));
  for (const Stranded& call : stranded) {
    call.result->error = last_failure_;
    if (call.is_dropped && !dropped_failure_) dropped_failure_ = last_failure_;
  }
}

/// Throws Error if so many more are not to be replaced.
void SessionCore::check_respawns(int more) const {
  if (respawns_ + more > settings_.max_respawns) {
    throw Error(ErrorKind::worker_lost, "that would be more than " + std::to_string(settings_.max_respawns) +
                                            " in this session (SessionOptions::max_respawns)");
  }
}

/// Each fails at the next place where it meets its peers, or at its end; user code that comes to neither has the deadline.
void SessionCore::await_survivors(Milliseconds limit) {
  Patience patience(limit);
  const auto are_done = [&] {
    for (int rank = 0; rank < world_size(); ++rank) {
      const WorkerSlot& slot = control_.worker(rank);
      if (slot.is_lost.load(std::memory_order_seq_cst) == 0 &&
          slot.done.load(std::memory_order_seq_cst) < last_published()) {
        return false;
      }
    }
    return true;
  };
  WaitPolicy policy = WaitPolicy::yielding();
  if (wait_until(control_.header().to_master, policy, patience, are_done, [] { return false; }) == Woken::ready) return;
  throw Error(ErrorKind::timeout, "the other workers did not come to the end of their calls within " +
                                      std::to_string(limit.count()) + " ms");
}

/// Buried, and their lives watched by nobody.
std::vector<int> SessionCore::lost_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (control_.worker(rank).is_lost.load(std::memory_order_seq_cst) == 0) continue;
    if (!await_cause(rank).wait_status) throw Error(ErrorKind::system, describe_rank(rank) + " cannot be killed");
    nursery_->unwatch_life(rank);
    ranks.push_back(rank);
  }
  return ranks;
}

/// The lost may have been ahead: what all of its ranks have come to the end of is not lost with them.
void SessionCore::collect_whole_calls() {
  const auto is_whole = [this](std::uint64_t id) {
    if (control_.command(id).failed.load(std::memory_order_acquire) == id) return false;
    for (const int rank : control_.command(id).ranks) {
      if (control_.worker(rank).done.load(std::memory_order_acquire) < id) return false;
    }
    return true;
  };
  while (drained_ < last_published() && is_whole(drained_ + 1)) {
    ++drained_;
    collect(drained_);
  }
}

/// All else that was published is over, and has failed.
std::vector<SessionCore::Stranded> SessionCore::strand_calls() {
  std::vector<Stranded> stranded;
  for (std::uint64_t id = drained_ + 1; id < next_id_; ++id) {
    InFlight& in_flight = in_flight_[id % kRingSize];
    if (in_flight.result != nullptr) {
      in_flight.result->finished = true;
      const bool is_dropped = in_flight.kept_result != nullptr && in_flight.kept_result.use_count() == 1;
      stranded.push_back({in_flight.result, in_flight.kept_result, is_dropped});
    }
    for (const auto offset : in_flight.temporaries) heap_.free(offset, SharedHeap::Giveback::later);
    in_flight.reset();
  }
  drained_ = passed_ = last_published();
  acknowledged_failure_ = last_published();
  auto& header = control_.header();
  header.acknowledged.store(acknowledged_failure_, std::memory_order_release);
  header.failed_comm.store(acknowledged_failure_,
                           std::memory_order_release);  // the communicators had a dead rank in them
  header.consumed.store(drained_, std::memory_order_release);
  for (int rank = 0; rank < world_size(); ++rank) control_.worker(rank).released_ns.store(0);
  return stranded;
}

/// As its next worker is to find it: done with all there was.
void SessionCore::clear_slot(int rank) {
  WorkerSlot& slot = control_.worker(rank);
  slot.collective_step.store(kLeft, std::memory_order_seq_cst);
  slot.collective_command.store(drained_, std::memory_order_seq_cst);
  slot.vote.store(vote_word(drained_, Vote::failed), std::memory_order_seq_cst);
  slot.plan.store(0);
  slot.plan_wait.store(0);
  slot.progress.store(progress_word(0, Phase::spawn));
  slot.reason.front() = '\0';
  slot.start.store(StartState::starting, std::memory_order_seq_cst);
  ++slot.predecessors;
  initialise_life(slot.life);
  for (const auto& [entry, variable] : variables_) {
    segment_.at<VariableEntry>(entry)->copies()[rank] = VariableCopy{};
    if (const auto known = variable.lock()) known->extents[static_cast<std::size_t>(rank)] = {};
  }
  slot.done.store(drained_, std::memory_order_seq_cst);
}

void SessionCore::bear_anew(const std::vector<int>& ranks) {
  for (const int rank : ranks) clear_slot(rank);
  control_.header().replacements.fetch_add(1, std::memory_order_acq_rel);
  workers_->forget_losses(ranks);
  for (const int rank : ranks) {
    nursery_->replace(rank, settings_.start_timeout, "--start-timeout or SessionOptions::start_timeout");
  }
  await_ready();
  for (const int rank : ranks) {
    nursery_->watch_life(rank);
    logger_->warn(describe_rank(rank) + " takes the place of a worker that was lost");
  }
}

/// What the new workers are given: copies of variables, and objects. What they cannot be given is undefined, as is what
/// may be half written.
void SessionCore::pass_on(const std::vector<int>& ranks, Failure& failure) {
  for (const auto& [entry, known] : variables_) {
    const auto variable = known.lock();
    if (!variable) continue;
    bool is_concerned = false;
    bool is_whole = true;
    for (const int rank : ranks) {
      if (!variable->assigned.has(static_cast<std::size_t>(rank))) continue;  // the lost worker had nothing of it
      is_concerned = true;
      is_whole = pass_on(*variable, ranks, rank) && is_whole;
    }
    if (!is_concerned) continue;
    auto& undefined = failure.undefined;
    if (std::find(undefined.begin(), undefined.end(), variable->name) != undefined.end()) continue;
    (is_whole ? failure.restored : undefined).push_back(variable->name);
  }
  for (const auto& [id, known] : objects_) {
    const auto object = known.lock();
    if (!object) continue;
    for (const int rank : ranks) construct_object(*object, RankSet::only(rank));
  }
}

/// A copy of the first survivor's. True if it is what the lost worker had, as far as can be known: the copies were made
/// equal, and those of the other survivors are so now.
bool SessionCore::pass_on(VariableRecord& variable, const std::vector<int>& ranks, int heir) {
  std::vector<int> survivors;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) survivors.push_back(rank);
  }
  const bool is_replicated = variable.is_replicated && !survivors.empty();
  Extents extents = survivors.empty() ? Extents{} : variable.extents[static_cast<std::size_t>(survivors.front())];
  if (!is_replicated) {
    extents[0] = 0;
    place_copy(variable, heir, 0, extents);
    variable.assigned.remove(static_cast<std::size_t>(heir));  // a shape only: a call that uses it is refused
    return false;
  }
  const std::size_t bytes = bytes_of(variable, extents);
  const HeapLoan values(*this, bytes, "a variable on its way to a new worker");
  if (bytes != 0) fetch_copy(variable, survivors.front(), values.offset());
  bool are_equal = true;
  for (std::size_t i = 1; i < survivors.size() && are_equal; ++i) {
    are_equal = variable.extents[static_cast<std::size_t>(survivors[i])] == extents;
    if (!are_equal || bytes == 0) continue;
    const HeapLoan others(*this, bytes, "a variable on its way to a new worker");
    fetch_copy(variable, survivors[i], others.offset());
    are_equal = std::memcmp(values.data(), others.data(), bytes) == 0;
  }
  place_copy(variable, heir, values.offset(), extents);
  variable.is_replicated = are_equal;
  return are_equal;
}

}  // namespace syncrun::detail

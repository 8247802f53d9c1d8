#include "launcher/calls/call_ring.hpp"

#include <algorithm>
#include <limits>

namespace syncrun::detail {

void InFlight::reset() noexcept {
  result = nullptr;
  kept_result.reset();
  function.reset();
  for (std::size_t i = 0; i < arguments_count; ++i) arguments[i].reset();
  arguments_count = 0;
  temporaries.clear();
  what = "";
  subject.clear();
  writes.clear();
}

void CallRing::attach(ControlBlock control) {
  control_ = control;
  all_ranks_ = RankSet::all(control.world_size());
  clocks_ = CallClocks(control.world_size());
}

CommandHead& CallRing::next(Milliseconds timeout) noexcept {
  static_cast<CommandHeader&>(draft_) = {.id = next_, .timeout_ms = timeout.count()};
  draft_.ranks = all_ranks_;
  return draft_;
}

std::uint64_t CallRing::publish() noexcept {
  auto& header = control_.header();
  const std::uint64_t id = next_++;
  put_head(control_.command(id), draft_);
  clocks_.begin(id, Milliseconds(draft_.timeout_ms),
                oldest() == id ? CallClocks::Before::nothing : CallClocks::Before::calls);
  header.published.store(id, std::memory_order_seq_cst);
  header.to_workers.ring();
  return id;
}

bool CallRing::have_all_passed(std::uint64_t id) const noexcept {
  return std::all_of(all_ranks_.begin(), all_ranks_.end(),
                     [&](int rank) { return control_.worker(rank).done.load(std::memory_order_seq_cst) >= id; });
}

void CallRing::retire(std::uint64_t id) noexcept {
  drained_ = id;
  if (control_.command(id).ranks == all_ranks_) passed_ = id;
}

void CallRing::release(std::uint64_t id, const std::exception_ptr& failure) noexcept {
  control_.header().consumed.store(id, std::memory_order_release);  // also for failed commands
  InFlight& call = in_flight(id);
  if (failure) {
    last_failure_ = failure;
    if (call.is_dropped()) note_dropped(failure);
  }
  call.reset();
}

void CallRing::fail_all(const std::exception_ptr& cause) noexcept {
  for (std::uint64_t id = oldest(); id < next_; ++id) {
    CallResult* const result = in_flight(id).result;
    if (result == nullptr) continue;
    result->error = cause;
    result->finished = true;
  }
}

void CallRing::forget_all() noexcept {
  for (auto& call : in_flight_) call.reset();
}

// ---- failures -------------------------------------------------------------------------------------------------

bool CallRing::has_failed(std::uint64_t id) const noexcept {
  return control_.command(id).failed.load(std::memory_order_acquire) == id || is_consequence(id);
}

void CallRing::acknowledge() noexcept {
  acknowledged_ = last_published();
  control_.header().acknowledged.store(acknowledged_, std::memory_order_release);
}

std::optional<int> CallRing::first_failed_rank(std::uint64_t id) const noexcept {
  std::optional<int> first;
  for (const int rank : control_.command(id).ranks) {
    const Outbox& outbox = control_.outbox(id, rank);
    if (outbox.vote != Vote::failed || outbox.failed_ns == std::numeric_limits<std::int64_t>::max()) continue;
    if (!first || outbox.failed_ns < control_.outbox(id, *first).failed_ns) first = rank;
  }
  return first;
}

bool CallRing::has_lost_device(std::uint64_t id) const noexcept {
  const RankSet& ranks = control_.command(id).ranks;
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const Outbox& outbox = control_.outbox(id, rank);
    return outbox.vote == Vote::failed && outbox.is_fatal;
  });
}

std::optional<std::uint64_t> CallRing::count_waited(Clock::duration waited) noexcept {
  const auto done_of = [this](int rank) { return control_.worker(rank).done.load(std::memory_order_acquire); };
  const auto ranks_of = [this](std::uint64_t id) -> const RankSet& { return control_.command(id).ranks; };
  return clocks_.count(oldest(), last_published(), waited, ranks_of, done_of);
}

// ---- words ----------------------------------------------------------------------------------------------------

std::string CallRing::name_of(std::uint64_t id) const {
  const InFlight& call = in_flight(id);
  if (call.function) return call.function->name;
  return call.subject.empty() ? call.what : call.what + (" of " + call.subject);
}

std::vector<std::string> CallRing::half_written_since(std::uint64_t id) const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (; id < next_; ++id) {
    const InFlight& call = in_flight(id);
    for (const auto& name : call.writes) add(name);
    if (!call.function) continue;
    const auto& arguments = call.function->signature.arguments;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].kind == ArgumentKind::local) add(static_cast<VariableRecord*>(call.arguments[i].get())->name);
    }
  }
  return names;
}

}  // namespace syncrun::detail

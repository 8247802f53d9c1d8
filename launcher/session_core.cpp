#include "launcher/session_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/extents.hpp"
#include "common/image.hpp"
#include "common/life.hpp"
#include "common/reduce.hpp"
#include "launcher/debugger.hpp"
#include "launcher/describe.hpp"
#include "launcher/rank_report.hpp"

namespace syncrun::detail {

namespace {

// One live session per process. Not a session's state, but the claim to be the only one.
std::atomic_flag live_session;

constexpr std::size_t kAlign = std::size_t{2} << 20U;
constexpr std::size_t round_up(std::size_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

// What a worker's arena holds besides its values: the buffers of its communicator.
constexpr std::size_t kLeastArenaBytes = 2 * kAlign;

/// Both halves of the segment (see prepare_control) are whole pages, and hold at least what we put there ourselves.
Segment reserve_segment(std::size_t control_bytes, int world_size) {
  const std::size_t bytes = default_reservation_bytes();
  const std::size_t least = 2 * (control_bytes + static_cast<std::size_t>(world_size) * kLeastArenaBytes);
  if (bytes < least) {
    throw_usage(std::string(environment::kReserveBytes) + " is at least " + std::to_string(least) + " for " +
                std::to_string(world_size) + " workers, got " + std::to_string(bytes));
  }
  return Segment::create(bytes / (2 * kAlign) * (2 * kAlign), std::max(least, Segment::kSmallestReservation));
}

class Claim {
 public:
  Claim() {
    if (live_session.test_and_set()) throw_usage("there is a live session in this process already: close it first");
  }
  ~Claim() {
    if (!kept_) live_session.clear();
  }
  void keep() noexcept { kept_ = true; }

 private:
  bool kept_ = false;
};

}  // namespace

// ---- opening --------------------------------------------------------------------------------------------------

SessionCore::SessionCore(const SessionOptions& options) {
  Claim claim;
  open_missing_standard_streams();
  settings_ = resolve_settings(options);
  logger_ = make_logger("syncrun", settings_.log_level);
  const int world_size = static_cast<int>(settings_.devices.size());
  all_ranks_ = RankSet::all(world_size);
  for (const auto& device : settings_.devices) {
    device_names_.push_back(to_string(device));
    kinds_.add(device.kind);
  }

  const std::size_t control_bytes = round_up(ControlBlock::bytes(world_size));
  segment_ = reserve_segment(control_bytes, world_size);
  control_ = ControlBlock(segment_.base(), world_size);
  clocks_ = CallClocks(world_size);
  prepare_control(control_bytes);
  policy_ = WaitPolicy::for_processes(world_size + 1, usable_cores());

  workers_.emplace(settings_, segment_, control_);
  nursery_ = std::make_unique<Nursery>(*workers_, settings_.grace, supervisor_link());
  nursery_->spawn_all(settings_.start_timeout, "--start-timeout or SessionOptions::start_timeout");
  await_ready();
  nursery_->watch_lives();
  for (int rank = 0; rank < world_size; ++rank) logger_->info(describe_rank(rank) + " is ready");
  announce();
  state_ = State::open;
  claim.keep();
}

/// The mapping of ranks to devices: `syncrun` says it, unless it is to be quiet; a program on its own logs it.
void SessionCore::announce() const {
  if (!settings_.overruled.empty()) logger_->warn(settings_.overruled);
  const std::string mapping = describe_mapping(settings_.devices);
  if (supervisor_link().is_connected() && environment::get(environment::kQuiet) == nullptr) {
    std::fprintf(stderr, "syncrun: %s\n", mapping.c_str());
  } else {
    logger_->info(mapping);
  }
}

void SessionCore::prepare_control(std::size_t control_bytes) {
  const int world_size = static_cast<int>(settings_.devices.size());
  auto& header = control_.header();
  header.magic = kMagic;
  header.world_size = static_cast<std::uint32_t>(world_size);
  // Half for the master's heap, the other half for the workers' arenas.
  header.heap_offset = control_bytes;
  header.heap_bytes = segment_.bytes() / 2 - control_bytes;
  header.arenas_offset = segment_.bytes() / 2;
  header.arena_bytes = segment_.bytes() / 2 / static_cast<std::size_t>(world_size) / kAlign * kAlign;
  header.seed = settings_.seed;
  header.spins = world_size + 1 <= usable_cores();
  header.workers_spin = world_size <= usable_cores();
  header.respawns = settings_.on_worker_lost == OnWorkerLost::respawn;
  const ImageAddress image = program_image();
  header.build_id_bytes = image.build_id_bytes;
  header.build_id = image.build_id;
  heap_ = SharedHeap(segment_, header.heap_offset, header.heap_bytes, pages_of(kinds_));
  for (int rank = 0; rank < world_size; ++rank) {
    initialise_life(control_.worker(rank).life);
    control_.worker(rank).device_kind = device_kind(rank);
  }
  begin_profile();
}

void SessionCore::begin_profile() {
  if (settings_.profile.empty() && settings_.trace.empty()) return;
  const auto bytes = sizeof(Timeline) * static_cast<std::size_t>(world_size());
  const std::uint64_t offset = heap_.allocate(bytes, SharedHeap::Contents::zero, "the timelines of a profile");
  control_.header().timelines_offset = offset;
  profiler_ = std::make_unique<Profiler>(settings_, segment_.at<const Timeline>(offset));
}

/// What goes wrong is close()'s to throw; without a close, it is logged in the end.
void SessionCore::end_profile() noexcept {
  if (!profiler_) return;
  try {
    profiler_->close();
  } catch (const Error& error) {
    profile_failure_ = error;
  }
}

void SessionCore::await_ready() {
  auto& header = control_.header();
  Patience patience(settings_.start_timeout);
  int failed = -1;
  const auto ready = [&] {
    bool all = true;
    for (int rank = 0; rank < world_size(); ++rank) {
      const StartState state = control_.worker(rank).start.load(std::memory_order_seq_cst);
      if (state == StartState::failed) failed = rank;
      all = all && state == StartState::ready;
    }
    return all || failed >= 0;
  };
  const auto lost = [&] { return header.lost.load(std::memory_order_seq_cst) != 0; };
  // Never spinning here: starting takes milliseconds, and the workers want the cores.
  WaitPolicy policy = WaitPolicy::yielding();
  const auto look = [this](Clock::time_point now) { heartbeats_.look(control_, now); };
  const Woken woken = wait_until(header.to_master, policy, patience, ready, lost, look);
  if (woken == Woken::interrupted) fail_start(static_cast<int>(header.lost.load()) - 1);
  if (failed >= 0) fail_start(failed);
  if (woken == Woken::ready) return;
  fail_late_start();
}

SessionCore::~SessionCore() {
  abandon();
  if (profile_failure_) logger_->warn(profile_failure_->what());
}

// ---- entries --------------------------------------------------------------------------------------------------

SessionCore::Entry::Entry(SessionCore& session) : session_(session) {
  if (session_.busy_.test_and_set(std::memory_order_acquire)) {
    throw_usage("a session is used from one thread at a time: another thread is inside a call of it");
  }
  try {
    session_.check_open();
    if (session_.has_releases_.load(std::memory_order_relaxed)) session_.run_releases();
  } catch (...) {
    session_.busy_.clear(std::memory_order_release);
    throw;
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

void SessionCore::release_later(std::function<void()> release) noexcept {
  try {
    const std::lock_guard lock(releases_mutex_);
    releases_.push_back(std::move(release));
    has_releases_.store(true, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    // No memory to remember it by: it goes with the session.
  }
}

void SessionCore::give_up(std::uint64_t offset, SharedHeap::Giveback giveback) noexcept {
  if (busy_.test_and_set(std::memory_order_acquire)) {
    return release_later([this, offset, giveback] { heap_.free(offset, giveback); });
  }
  if (is_open()) heap_.free(offset, giveback);
  busy_.clear(std::memory_order_release);
}

void SessionCore::give_back_pages() {
  if (!kinds_.has(DeviceKind::cuda)) return;
  run_system("unpin", "", [](Command& command, InFlight&) { command.begin<UnpinPayload>(CommandKind::unpin); });
  heap_.trim();
}

std::uint64_t SessionCore::allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) {
  try {
    return heap_.allocate(bytes, contents, what);
  } catch (const Error& error) {
    if (error.native_code() != ENOMEM || !kinds_.has(DeviceKind::cuda)) throw;
  }
  give_back_pages();
  return heap_.allocate(bytes, contents, what);
}

void SessionCore::add_variable(const std::shared_ptr<VariableRecord>& variable) {
  variables_[variable->entry] = variable;
}

void SessionCore::add_object(const std::shared_ptr<ObjectRecord>& object) {
  std::erase_if(objects_, [](const auto& known) { return known.second.expired(); });
  objects_[object->id] = object;
}

void SessionCore::add_dependant(const std::shared_ptr<SessionDependant>& dependant) {
  std::erase_if(dependants_, [](const auto& known) { return known.expired(); });
  dependants_.push_back(dependant);
}

void SessionCore::run_releases() {
  for (;;) {
    std::function<void()> release;
    {
      const std::lock_guard lock(releases_mutex_);
      if (releases_.empty()) return has_releases_.store(false, std::memory_order_relaxed);
      release = std::move(releases_.front());
      releases_.pop_front();  // one at a time: what throws takes no others along
    }
    release();
  }
}

// ---- commands -------------------------------------------------------------------------------------------------

void SessionCore::InFlight::reset() noexcept {
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

Command& SessionCore::next_command() {
  if (next_id_ - drained_ > kRingSize) drain(next_id_ - kRingSize);
  if (next_id_ - passed_ > kRingSize) await_passed(next_id_ - kRingSize);
  Command& command = control_.command(next_id_);
  static_cast<CommandHeader&>(command) = {
      .id = next_id_, .timeout_ms = settings_.call_timeout.count(), .ranks = all_ranks_};
  return command;
}

DeviceKinds SessionCore::kinds_of(const RankSet& ranks) const noexcept {
  if (ranks == all_ranks_) return kinds_;
  DeviceKinds kinds;
  for (const int rank : ranks) kinds.add(device_kind(rank));
  return kinds;
}

/// Until the slot of a command is free: its own ranks are done with it, and the others have passed it.
void SessionCore::await_passed(std::uint64_t id) {
  auto& header = control_.header();
  const auto have_passed = [&] {
    for (const int rank : all_ranks_) {
      if (control_.worker(rank).done.load(std::memory_order_seq_cst) < id) return false;
    }
    return true;
  };
  const auto lost = [&] { return header.lost.load(std::memory_order_seq_cst) != 0; };
  const auto look = [this](Clock::time_point now) { heartbeats_.look(control_, now); };
  while (passed_ < id) {
    CallLimits limits(*this);
    Patience patience(settings_.call_timeout);
    EitherLimit either{limits, patience};
    switch (wait_until(header.to_master, policy_, either, have_passed, lost, look)) {
      case Woken::interrupted: end_with_loss(std::min(drained_ + 1, last_published())); continue;  // see drain
      case Woken::expired:
        if (limits.expired()) expire(*limits.expired());
        else end_with_ring_held(id);
        continue;
      case Woken::ready: passed_ = id; break;
    }
    limits.end();
  }
}

std::uint64_t SessionCore::publish() {
  auto& header = control_.header();
  const std::uint64_t id = next_id_++;
  const Command& command = control_.command(id);
  clocks_.begin(id, command.ranks, Milliseconds(command.timeout_ms), drained_ + 1 == id);
  if (profiler_) [[unlikely]]
    profiler_->begin(id, call_name(id));
  header.published.store(id, std::memory_order_seq_cst);
  header.to_workers.ring();
  return id;
}

void SessionCore::run_system(const char* what, const std::string& subject,
                             const std::function<void(Command&, InFlight&)>& fill) {
  drain_all();  // else the workers would not all see it at the same place among the calls in flight
  Command& command = next_command();
  InFlight& in_flight = next_in_flight();
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
  auto& header = control_.header();
  while (drained_ < last) {
    const std::uint64_t id = drained_ + 1;
    CallLimits limits(*this);
    const RankSet& ranks = control_.command(id).ranks;
    auto behind = ranks.begin();  // ranks before it are done
    const auto done = [&, end = ranks.end()] {
      while (behind != end && control_.worker(*behind).done.load(std::memory_order_seq_cst) >= id) ++behind;
      return behind == end;
    };
    const auto lost = [&] { return header.lost.load(std::memory_order_seq_cst) != 0; };
    const auto look = [this](Clock::time_point now) { heartbeats_.look(control_, now); };
    switch (wait_until(header.to_master, policy_, limits, done, lost, look)) {
      case Woken::interrupted: end_with_loss(id); continue;  // a new worker has come, and nothing is in flight
      case Woken::expired: expire(*limits.expired()); continue;
      case Woken::ready: break;
    }
    if (id != last_published()) limits.end();  // else no clock runs any more
    drained_ = id;
    if (ranks == all_ranks_) passed_ = id;
    collect(id);
  }
}

bool SessionCore::is_head_over() const {
  for (const int rank : control_.command(drained_ + 1).ranks) {
    if (control_.worker(rank).done.load(std::memory_order_seq_cst) <= drained_) return false;
  }
  return true;
}

void SessionCore::collect(std::uint64_t id) {
  const Command& command = control_.command(id);
  InFlight& in_flight = in_flight_[id % kRingSize];
  if (profiler_) [[unlikely]]
    profiler_->end(id);
  CallResult unwanted;
  CallResult& result = in_flight.result != nullptr ? *in_flight.result : unwanted;
  try {
    if (command.failed.load(std::memory_order_acquire) == id || id <= acknowledged_failure_) {
      result.error = failure_of(id);
    } else {
      if (in_flight.function && command.ranks == all_ranks_) in_flight.function->came_through_after = replacements();
      const auto* const call = std::get_if<CallPayload>(&command.payload);
      if (call != nullptr && call->outputs_count != 0) collect_outputs(id, command, result);
    }
  } catch (...) {  // also out of memory: the call is over either way, and its result's place is forgotten below
    result.error = std::current_exception();
  }
  control_.header().consumed.store(id, std::memory_order_release);  // also of what failed
  if (result.error) {
    last_failure_ = result.error;
    const bool is_dropped = in_flight.kept_result != nullptr && in_flight.kept_result.use_count() == 1;
    if (is_dropped && !dropped_failure_) dropped_failure_ = result.error;
  }
  result.finished = true;
  const std::exception_ptr error = result.error;  // the result goes below, where nobody keeps it
  for (const auto offset : in_flight.temporaries) heap_.free(offset, SharedHeap::Giveback::later);
  in_flight.reset();
  if (error && has_lost_device(id)) end_with_lost_device(error);
}

// ---- results --------------------------------------------------------------------------------------------------

void SessionCore::collect_outputs(std::uint64_t id, const Command& command, CallResult& result) {
  ranks_.clear();
  double rows = 0;
  const CallPayload& call = command.call();
  for (const int rank : command.ranks) {
    const Outbox& outbox = control_.outbox(id, rank);
    if (outbox.is_empty) continue;
    ranks_.push_back(rank);
    rows += static_cast<double>(outbox.rows);
  }
  weights_.clear();
  for (const int rank : ranks_) weights_.push_back(static_cast<double>(control_.outbox(id, rank).rows) / rows);

  const FunctionRecord& function = *in_flight_[id % kRingSize].function;
  result.outputs = std::vector<RawOutput>(call.outputs_count);
  for (std::size_t i = 0; i < call.outputs_count; ++i) {
    if ((call.wanted_outputs >> i & 1U) == 0) continue;
    const OutputType& type = command.outputs[i];
    RawOutput& to = result.outputs[i];
    const auto slot = [&](int rank) -> const OutputSlot& { return control_.outbox(id, rank).outputs[i]; };
    sources_.clear();
    if (type.dimensions == 0) {
      for (const int rank : ranks_) sources_.push_back(slot(rank).scalar.data());
      void* destination = to.scalar.data();
      reduce_elements(type.dtype, type.reduction, {&destination, 1}, sources_, weights_, 1);
      continue;
    }

    const bool gathers = type.reduction == Reduction::gather;
    to.extents = slot(ranks_.front()).extents;
    for (const int rank : ranks_) {
      const auto& extents = slot(rank).extents;
      if (!std::equal(extents.begin() + (gathers ? 1 : 0), extents.begin() + type.dimensions,
                      to.extents.begin() + (gathers ? 1 : 0))) {
        throw Error(ErrorKind::function, "call '" + function.name + "': " + describe_output(function, i) +
                                             " has shape " + syncrun::to_string({to.extents.data(), type.dimensions}) +
                                             " on rank " + std::to_string(ranks_.front()) + " and " +
                                             syncrun::to_string({extents.data(), type.dimensions}) + " on rank " +
                                             std::to_string(rank));
      }
      sources_.push_back(segment_.at(slot(rank).offset));
    }
    if (gathers) {
      to.extents[0] = 0;
      for (const int rank : ranks_) to.extents[0] += slot(rank).extents[0];
    }
    const std::size_t elements = elements_in({to.extents.data(), type.dimensions});
    to.buffer = OutputBuffer::on_heap(elements * size_of(type.dtype), OutputBuffer::Contents::any);
    if (gathers) {
      auto* at = static_cast<std::byte*>(to.buffer.data());
      for (std::size_t k = 0; k < ranks_.size(); ++k) {
        const std::size_t bytes = elements_in({slot(ranks_[k]).extents.data(), type.dimensions}) * size_of(type.dtype);
        if (bytes != 0) std::memcpy(at, sources_[k], bytes);
        at += bytes;
      }
    } else if (control_.outbox(id, ranks_.front()).is_reduced) {
      std::memcpy(to.buffer.data(), sources_.front(), to.buffer.bytes());
    } else {
      void* destination = to.buffer.data();
      reduce_elements(type.dtype, type.reduction, {&destination, 1}, sources_, weights_, elements);
    }
  }
}

// ---- ends -----------------------------------------------------------------------------------------------------

void SessionCore::close() {
  if (fork_guard_.is_here() && state_ != State::open) return;
  {
    const Entry entry(*this);
    is_closing_ = true;
    drain_all();
    next_command().begin<ClosePayload>(CommandKind::close);
    nursery_->expect_ends();
    publish();
    drained_ = passed_ = last_published();
  }
  std::vector<RankState> states;  // where there is somebody who does not end
  if (!await_ends_at_close()) {
    states = rank_states(last_published());
    take_stacks(states);
    nursery_->kill_all();
  }
  std::optional<Error> failure;
  if (nursery_->has_lost_descriptors()) failure = nursery_->lost_descriptors();
  for (int rank = 0; rank < world_size() && !failure; ++rank) {
    const ChildEnd end = await_cause(rank);
    const auto status = end.wait_status;
    if (status == 0 || status == kUnknownStatus) continue;
    Failure loss = describe_loss(rank, end);
    loss.phase = to_string(Phase::close);
    const bool was_killed = !states.empty() && states[static_cast<std::size_t>(rank)].end.empty();
    if (was_killed) {
      loss.cause = "did not end within " + std::to_string(settings_.grace.count()) + " ms and was killed" +
                   stop_suffix(states[static_cast<std::size_t>(rank)].stop_signal);
    }
    loss.ranks = states;
    failure = lost_error(std::move(loss), "while closing (phase close)", status);
  }
  const auto dropped = dropped_failure_;
  end_cause_ = failure;
  abandon();
  if (failure) throw *failure;
  if (dropped) std::rethrow_exception(dropped);
  if (profile_failure_) throw *std::exchange(profile_failure_, std::nullopt);
}

void SessionCore::abandon() noexcept {
  if (state_ == State::closed) return;
  const bool was_open = state_ == State::open;
  state_ = State::closed;
  if (!fork_guard_.is_here()) static_cast<void>(nursery_.release());  // its threads and its workers are elsewhere
  for (const auto& known : dependants_) {
    if (const auto dependant = known.lock()) dependant->end_with_session();
  }
  if (nursery_) nursery_->expect_ends();
  nursery_.reset();
  if (fork_guard_.is_here()) end_profile();
  for (auto& in_flight : in_flight_) in_flight.reset();
  {
    const std::lock_guard lock(releases_mutex_);
    releases_.clear();
  }
  if (was_open) live_session.clear();
}

}  // namespace syncrun::detail

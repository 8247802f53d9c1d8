#include "worker/serve/worker_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "common/os/environment.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/protocol/image.hpp"
#include "common/text/errors.hpp"
#include "worker/place/user_code.hpp"

namespace syncrun::detail {

namespace {

std::int64_t now_ns() noexcept { return Clock::now().time_since_epoch().count(); }

LogLevel log_level_from_environment();

void raise_to(std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept {
  std::uint64_t known = word.load(std::memory_order_relaxed);
  while (known < value && !word.compare_exchange_weak(known, value, std::memory_order_acq_rel)) {
  }
}

std::unique_ptr<WorkerDevice> make_device(const DeviceContext& context) {
  context.attachment.slot().progress.store(progress_word(0, Phase::device), std::memory_order_release);
  context.attachment.fault_point(0, Phase::device);
  if (context.attachment.slot().device_kind == DeviceKind::cuda) return make_cuda_device(context);
  return make_cpu_device(context);
}

/// Whether ranks can wait for each other in this command.
bool may_meet(const Command& command) noexcept { return command.has_comm && !command.ranks.is_single(); }

/// Ends this process, so that a new worker takes its rank. Runs no destructors: those of a device that lost its context may
/// wait for ever.
[[noreturn]] void end_for_lost_device(WorkerSlot& slot, const std::string& why) {
  put_text(slot.reason, why);
  std::fprintf(stderr, "syncrun worker: cannot go on: %s\n", why.c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

/// How ranks wait for each other. The master sleeps meanwhile, if this is the only node. On several nodes, the master and
/// the agents carry what the ranks exchange. If they have no core of their own, ranks must not stay awake for long.
WaitPolicy policy_of_meetings(const ControlHeader& header) noexcept {
  WaitPolicy policy = header.workers_spin ? WaitPolicy::spinning() : WaitPolicy::yielding();
  if (header.place.nodes > 1 && !header.spins) policy.awake_for = WaitPolicy::yielding().awake_for;
  return policy;
}

}  // namespace

WorkerCore::WorkerCore(Attachment& attachment)
    : attachment_(attachment),
      header_(attachment_.control.header()),
      policy_(header_.spins ? WaitPolicy::spinning() : WaitPolicy::yielding()),
      arena_(attachment_.segment,
             attachment_.control.arena_at(attachment_.rank) + NodeStaging::reserved_bytes(attachment_.place),
             header_.arena_bytes - NodeStaging::reserved_bytes(attachment_.place),
             // GPUs of other ranks copy from this rank's arena, and pin its pages.
             pages_of(attachment_.control.kinds_here())),
      outgoing_(arena_, attachment_.slot().consumed),
      left_memory_(attachment_, arena_),
      interruption_(attachment_, &left_memory_),
      meetings_(attachment_, policy_of_meetings(header_)),
      rendezvous_(attachment_, meetings_),
      peers_(attachment_, meetings_, interruption_),
      nodes_(attachment_.place.nodes > 1 ? std::make_unique<NodesComm>(attachment_, meetings_, peers_, interruption_)
                                         : nullptr),
      device_(
          make_device({attachment_, arena_, peers_, nodes_.get(), rendezvous_, interruption_, [this] { look_ahead(); },
                       [this](std::size_t bytes) { return variables_.drop_spare(bytes, current_); }})),
      comms_(attachment_, arena_, peers_, *device_, nodes_.get()),
      cpu_worker_(*this),
      cuda_worker_(*this),
      logger_(make_logger(attachment_.device, log_level_from_environment())),
      variables_(attachment_, *device_, comms_, [this] { running_->note_stale_recordings(); }),
      copy_files_(attachment_, *device_, arena_, variables_),
      running_(std::make_unique<RunningCall>(
          WorkerParts{attachment_, *device_, comms_, arena_, files_, outgoing_, variables_})),
      replacements_(header_.replacements.load(std::memory_order_acquire)),
      received_(attachment_.slot().received),
      current_(attachment_.slot().done.load(std::memory_order_acquire)) {
  std::seed_seq seed{static_cast<std::uint32_t>(header_.seed), static_cast<std::uint32_t>(header_.seed >> 32U),
                     static_cast<std::uint32_t>(attachment_.rank)};
  rng_.seed(seed);
  if (attachment_.slot().predecessors != 0) arena_.note_used_before();
}

WorkerCore::~WorkerCore() { destroy_objects(); }

// ---- what bodies use ------------------------------------------------------------------------------------------

GpuDevice& WorkerCore::gpu() {
  GpuDevice* const gpu = device_->gpu();
  if (gpu == nullptr) throw_usage("a CPU device has no stream and no CUDA library handles");
  return *gpu;
}

void* WorkerCore::scratch(std::size_t bytes) {
  end_if_forked();
  if (bytes > scratch_bytes_) {
    void* larger = device_->allocate(bytes, SharedHeap::Contents::any, "a worker's scratch");
    drop_scratch();
    scratch_ = larger;
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

void WorkerCore::drop_scratch() noexcept {
  if (scratch_ == nullptr) return;
  device_->release(std::exchange(scratch_, nullptr));
  scratch_bytes_ = 0;
  running_->note_stale_recordings();
}

void* WorkerCore::object(std::uint64_t id) const {
  const auto found = objects_.find(id);
  if (found == objects_.end())
    throw Error(ErrorKind::system, "this worker has no replicated object " + std::to_string(id));
  return found->second.pointer;
}

void WorkerCore::keep_object(std::uint64_t id, void* object, void (*destroy)(void*) noexcept) {
  objects_.emplace(id, Object{object, destroy});
}

void WorkerCore::destroy_object(std::uint64_t id) noexcept {
  set_phase(Phase::function);  // a destructor of the user runs here
  if (const auto found = objects_.find(id); found != objects_.end()) {
    const Object object = found->second;
    objects_.erase(found);
    const UserCode destructor;
    object.destroy(object.pointer);
  }
}

void WorkerCore::destroy_objects() noexcept {
  for (const auto& [id, object] : std::exchange(objects_, {})) {
    const UserCode destructor;
    object.destroy(object.pointer);
  }
}

// ---- the serve loop -------------------------------------------------------------------------------------------

int WorkerCore::serve() {
  WorkerSlot& slot = attachment_.slot();
  put_text(slot.hardware, device_->hardware());
  slot.is_closed_to_peers = !device_->is_open_to_peers();
  set_phase(Phase::idle);
  slot.start.store(StartState::ready, std::memory_order_seq_cst);
  header_.to_master.ring();

  attachment_.fault_point(0, Phase::idle);

  while (Command* const next = await_command()) {
    Command& command = *next;
    end_if_forked();
    ++received_;
    call_ = command.kind == CommandKind::call ? &command : nullptr;
    interruption_.begin(command,
                        command.has_comm ? CallInterruption::Peers::needed : CallInterruption::Peers::not_needed);
    note_command(current_);
    if (command.kind == CommandKind::close) {
      enter_phase(Phase::close);
      destroy_objects();
      throw_if_child_came();  // no later call could report it
      return 0;
    }
    try {
      execute(command);
    } catch (const SessionLost&) {
      if (!header_.respawns) break;
      give_up_for_loss(command);
    }
    finish(command);
    attachment_.fault_point(current_, Phase::idle);
  }
  return 0;  // the session has ended without a close command: the master does the rest
}

/// The next command becomes the current one. Returns null once the session is over.
Command* WorkerCore::await_command() {
  Patience endless{Milliseconds(0)};
  const auto& place = attachment_.control.inbox(attachment_.rank, received_ % kInboxSize);
  InboxEntry entry{0};
  const auto published = [&] {
    entry = InboxEntry(place.load(std::memory_order_seq_cst));
    return entry.command() > current_;
  };
  const auto has_news = [&] {
    return header_.respawns ? has_new_peers() : header_.lost.load(std::memory_order_seq_cst) != 0;
  };
  for (;;) {
    const Woken woken = wait_until(header_.to_workers, policy_, endless, published, has_news);
    if (policy_.has_yielded) note_long_wait();
    if (header_.respawns && has_new_peers()) [[unlikely]] {
      replacements_ = header_.replacements.load(std::memory_order_acquire);
      device_->forget_replaced_peers();
    }
    if (woken == Woken::ready) break;
    if (!header_.respawns) return nullptr;
  }
  current_ = entry.command();
  return &attachment_.control.command_in(entry.slot());
}

/// While the device computes, copies the inputs of the next command to it, if the master has already published that
/// command.
void WorkerCore::look_ahead() {
  const auto& place = attachment_.control.inbox(attachment_.rank, received_ % kInboxSize);
  const InboxEntry next{place.load(std::memory_order_acquire)};
  if (next.command() <= current_ || next.command() == looked_ahead_) return;
  const Command& command = attachment_.control.command_in(next.slot());
  if (command.kind == CommandKind::move && !start_move_ahead(command)) return;  // perhaps later
  looked_ahead_ = next.command();
  if (command.kind == CommandKind::call) running_->bring_ahead(command, next.command());
}

/// Starts to copy a Value from another rank while the call that runs computes. The other rank must be done with the
/// value, and the call must not use the copy. Commands before the call are complete.
bool WorkerCore::start_move_ahead(const Command& command) {
  if (call_ == nullptr || !are_earlier_done(command) || depends_on_a_failure(command) || has_lost_a_rank(command))
    return false;
  if (source_on_other_node(command)) return false;
  const std::uint64_t variable = command.as<MovePayload>().variable;
  const std::span arguments(call_->arguments.data(), call_->call().arguments_count);
  const bool is_in_use = std::any_of(arguments.begin(), arguments.end(),
                                     [&](const ArgumentSlot& argument) { return argument.offset == variable; });
  if (is_in_use) return false;
  try {
    return variables_.start_move_ahead(command);
  } catch (const Error&) {
    return false;  // this failure does not belong to the call
  }
}

void WorkerCore::finish(const Command& command) noexcept {
  const bool had_peers = may_meet(command);  // once this rank is done, the slot may contain another command
  if (had_peers) meetings_.leave(command);
  set_phase(Phase::idle);
  attachment_.slot().done.store(current_, std::memory_order_seq_cst);
  header_.to_master.ring();
  if (had_peers) header_.to_peers.ring();  // a peer may wait until this rank no longer reads its buffers
}

/// If workers are replaced: whether a worker of this command was lost, so that the command cannot be completed.
bool WorkerCore::has_lost_a_rank(const Command& command) const noexcept {
  if (!header_.respawns || header_.lost.load(std::memory_order_acquire) == 0) return false;
  // These only free something, and need no peer.
  const bool frees =
      command.kind == CommandKind::destroy || command.kind == CommandKind::unmap || command.kind == CommandKind::free;
  if (frees) return false;
  const auto* const move = std::get_if<MovePayload>(&command.payload);
  if (move != nullptr && attachment_.control.worker(move->from).is_lost.load(std::memory_order_seq_cst) != 0)
    return true;
  return std::any_of(command.ranks.begin(), command.ranks.end(), [this](int rank) {
    return attachment_.control.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0;
  });
}

/// Waits until other ranks are done with the commands that must come before this one. These commands are earlier ones,
/// and a rank runs its commands in order, so the wait ends. The values of a move from another node come when the rank
/// there is done, so its node waits for that rank. Throws SessionLost if such a rank was lost.
void WorkerCore::await_earlier(const Command& command) {
  const auto* const first = attachment_.segment.at<const Dependency>(command.dependencies);
  const std::optional<int> source = source_on_other_node(command);
  for (const Dependency& earlier : std::span(first, command.dependencies_count)) {
    if (earlier.rank == Dependency::kOwnRank || earlier.rank == source) continue;
    const auto is_done = [&] { return is_over(earlier); };
    if (!is_done()) await_others(is_done, attachment_.control.worker(earlier.rank));
  }
}

/// If the command is a move from another node, waits until the values have come.
void WorkerCore::await_values(const Command& command) {
  if (!source_on_other_node(command)) return;
  const auto have_come = [&] { return command.arrived.load(std::memory_order_seq_cst) == current_; };
  if (!have_come()) await_others(have_come, attachment_.control.worker(command.as<MovePayload>().from));
}

/// `other` is the rank for which this one waits.
template <class Ready>
void WorkerCore::await_others(Ready&& ready, const WorkerSlot& other) {
  enter_phase(Phase::dependencies);
  const auto is_lost = [&] {
    if (header_.lost.load(std::memory_order_seq_cst) == 0) return false;
    return !header_.respawns || other.is_lost.load(std::memory_order_seq_cst) != 0;
  };
  Patience endless{Milliseconds(0)};
  // A worker that is done with a command rings the bell of the master, and so do those who carry values between nodes.
  if (wait_until(header_.to_master, policy_, endless, ready, is_lost) != Woken::ready) raise_session_lost(attachment_);
}

/// Whether a command of another rank no longer uses what this rank has. Only the master's node knows what ranks of other
/// nodes have done. The other nodes need not know: such a command reads a copy, and this node itself sends the values.
bool WorkerCore::is_over(const Dependency& earlier) const noexcept {
  const WorkerSlot& other = attachment_.control.worker(earlier.rank);
  if (attachment_.place.has(earlier.rank) || attachment_.place.node == 0)
    return other.done.load(std::memory_order_seq_cst) >= earlier.id;
  const std::uint64_t owed = other.owed.load(std::memory_order_seq_cst);
  return owed == 0 || owed > earlier.id;
}

/// The source of a move, if it is on another node.
std::optional<int> WorkerCore::source_on_other_node(const Command& command) const noexcept {
  const auto* const move = std::get_if<MovePayload>(&command.payload);
  if (move == nullptr || attachment_.place.has(move->from)) return std::nullopt;
  return move->from;
}

bool WorkerCore::are_earlier_done(const Command& command) const noexcept {
  const auto* const first = attachment_.segment.at<const Dependency>(command.dependencies);
  return std::all_of(first, first + command.dependencies_count, [this](const Dependency& earlier) {
    return earlier.rank == Dependency::kOwnRank || is_over(earlier);
  });
}

/// Whether a command on which this one depends has failed on any rank so far. The slot of such a command may contain
/// another one by now. Then the master has collected it, and before that it has set `spoiled` if it failed.
bool WorkerCore::depends_on_a_failure(const Command& command) const noexcept {
  if (command.dependencies_count == 0) return false;
  const auto* const first = attachment_.segment.at<const Dependency>(command.dependencies);
  const bool has_failed = std::any_of(first, first + command.dependencies_count, [this](const Dependency& earlier) {
    if (earlier.slot == Dependency::kOnlyReads) return false;
    return attachment_.control.command_in(earlier.slot).failed.load(std::memory_order_seq_cst) == earlier.id;
  });
  return has_failed || command.spoiled.load(std::memory_order_seq_cst) == command.id;
}

void WorkerCore::execute(Command& command) {
  outgoing_.collect();
  left_memory_.collect();
  if (has_lost_a_rank(command)) return give_up_for_loss(command);
  if (command.dependencies_count != 0) await_earlier(command);
  if (command.kind == CommandKind::move) await_values(command);
  if (depends_on_a_failure(command)) {
    report_failure(command, {ErrorKind::function, 0, "a call on which this one depends failed", FailureOf::peer});
    return cast_vote(command, Vote::failed);  // a faster peer may be waiting for this vote
  }
  Outbox& outbox = own_outbox();
  try {
    if (command.has_comm) comms_.of(command).begin(command);
    switch (command.kind) {
      case CommandKind::call: return run_call(command);
      case CommandKind::destroy:
        destroy_object(command.as<DestroyPayload>().object);
        throw_if_child_came();
        break;
      case CommandKind::unmap: return files_.forget(command.as<UnmapPayload>().file);
      case CommandKind::collective:
        enter_phase(Phase::collective);
        variables_.run_collective(command);
        break;
      case CommandKind::transfer:
        enter_phase(Phase::inputs);
        variables_.run_transfer(command.as<TransferPayload>());
        break;
      case CommandKind::move:
        enter_phase(Phase::inputs);
        variables_.run_move(command);
        break;
      case CommandKind::files:
        enter_phase(Phase::inputs);
        copy_files_.run(command.as<FilesPayload>());
        break;
      case CommandKind::free:
        enter_phase(Phase::inputs);
        variables_.free(command.as<FreePayload>());
        break;
      case CommandKind::memory:
        *attachment_.segment.at<MemorySize>(command.as<MemoryPayload>().to) = device_->memory();
        break;
      case CommandKind::unpin:
        enter_phase(Phase::inputs);
        if (GpuDevice* const gpu = device_->gpu(); gpu != nullptr) gpu->unpin();
        break;
      case CommandKind::close: break;
    }
    outbox.vote = Vote::ok;
  } catch (...) {
    report_failure(command, current_failure(ThrownThrough::library));
  }
  if (command.wants_vote) {
    cast_vote(command, outbox.vote);
    // No rank starts the next collective before all ranks know how this one ended.
    if (!meetings_.all_voted_ok(command)) note_failure_elsewhere(command);
  }
}

/// A peer is lost and will be replaced. Until then, commands that are already published fail. A vote that was cast stays:
/// peers may have committed their updates because of it.
void WorkerCore::give_up_for_loss(Command& command) {
  const bool has_voted = attachment_.slot().vote.load(std::memory_order_relaxed) >= vote_word(current_, Vote::none);
  report_failure(command, {ErrorKind::worker_lost, 0, "a worker was lost", FailureOf::peer});
  if (!has_voted) cast_vote(command, Vote::failed);
}

// ---- calls ----------------------------------------------------------------------------------------------------

const WorkerCore::LoadedFunction& WorkerCore::load(std::uint64_t function_offset) {
  const auto* entry = attachment_.segment.at<const FunctionEntry>(function_offset);
  if (entry->id == last_function_) return *last_loaded_;
  LoadedFunction& loaded = functions_[function_offset];
  if (loaded.id != entry->id) {
    const BodyEntry& body = attachment_.body_of(*entry);
    loaded = {entry->id, reinterpret_cast<Thunk>(resolve(body.thunk)), resolve_pointer(body)};
  }
  last_function_ = loaded.id;
  return *(last_loaded_ = &loaded);
}

void WorkerCore::run_call(Command& command) {
  Outbox& outbox = own_outbox();
  bool has_thrown = false;
  try {
    if (command.call().arguments_count != 0) enter_phase(Phase::inputs);
    device_->begin_command(current_);
    running_->begin(command, current_);
    const LoadedFunction& function = load(command.call().function);
    if (command.call().constructs) enter_phase(Phase::function);
    if (command.call().is_measured) peers_.own_time().begin();
    WorkerCall call(*this);
    function.thunk(call, function.pointer);
    if (command.call().is_measured) outbox.own_ns = own_ns();
    throw_if_child_came();
    running_->check_files();
    running_->deliver(outbox);
    // A body may have caught the exception of a collective.
    // Read only where it matters: `failed` has a cache line of its own.
    const auto has_failed = [&] {
      return command.failed.load(std::memory_order_acquire) == current_ || left_memory_.has_left(current_);
    };
    if (command.has_comm && has_failed()) throw Abandoned();
    outbox.vote = Vote::ok;
  } catch (...) {
    has_thrown = true;
    peers_.own_time().end();
    const CaughtFailure failure = current_failure(ThrownThrough::user_code);
    const bool is_own = failure.origin == FailureOf::this_rank;
    report_failure(command, is_own ? missing_file().value_or(failure) : failure);
  }
  // The destructor of the exception, which is user code, has run just now. It may have forked.
  if (has_thrown) [[unlikely]] {
    const UserCode destructor;
  }

  cast_vote(command, outbox.vote);
  complete_call(command, outbox);
  running_->end(current_);
}

/// How long this rank has worked in a measured call. The work on a GPU counts until its end.
std::int64_t WorkerCore::own_ns() {
  device_->finish();
  return peers_.own_time().end().count();
}

/// If a file has become shorter, the body may have failed because it read zeros in place of the missing bytes. Then the
/// missing bytes are the failure to report.
std::optional<CaughtFailure> WorkerCore::missing_file() const {
  if (!running_->is_of(current_)) return std::nullopt;
  try {
    running_->check_files();
    return std::nullopt;
  } catch (const Error&) {
    return current_failure(ThrownThrough::library);
  }
}

/// Runs after this rank's vote. Updates are committed and outputs are reduced only if every rank has voted ok.
void WorkerCore::complete_call(Command& command, Outbox& outbox) {
  const bool may_reduce = outbox.vote == Vote::ok && running_->may_reduce_outputs(outbox);
  const bool waits = command.wants_vote || may_reduce;
  if (!waits) return;
  // A peer may still wait for this rank in a collective. It must learn that this rank does not come, so that it votes.
  if (may_meet(command) && !(may_reduce && running_->may_meet_after_vote())) meetings_.leave(command);
  set_phase(Phase::vote);
  if (!meetings_.all_voted_ok(command)) return note_failure_elsewhere(command);
  if (may_reduce) interruption_.note_that_peers_are_needed();
  try {
    set_phase(Phase::reduction);
    // Updates are committed first, because no other rank can make this fail. So they are committed on all ranks or on
    // none.
    if (command.wants_vote) {
      const CallInterruption::Pause until_committed(interruption_);
      running_->commit_updates();
    }
    attachment_.fault_point(current_, Phase::reduction);
    if (may_reduce) running_->reduce_outputs(outbox);
  } catch (...) {
    report_failure(command, current_failure(ThrownThrough::library));
  }
}

/// Stores this rank's vote, if the command has outputs or requires a vote. Outputs are reduced and updates committed
/// only if every rank has voted ok.
void WorkerCore::cast_vote(const Command& command, Vote vote) noexcept {
  const auto* const call = std::get_if<CallPayload>(&command.payload);
  const bool has_outputs = call != nullptr && call->outputs_count != 0;
  if (!has_outputs && !command.wants_vote) return;
  own_outbox().cast = vote;
  attachment_.slot().vote.store(vote_word(current_, vote), std::memory_order_seq_cst);
  header_.to_peers.ring();
  if (command.wants_vote && meets_across_nodes(command.comm)) header_.to_master.ring();
}

/// A rank that fails notes this for its peers, but cannot do so on other nodes. There the votes tell of the failure.
void WorkerCore::note_failure_elsewhere(const Command& command) noexcept {
  if (!command.comm.spans_nodes() || command.comm.path() != CommPath::devices) return;
  raise_to(header_.failed_comm(command.comm), current_);
}

void WorkerCore::report_failure(Command& command, const CaughtFailure& failure) {
  const bool has_lost_device = device_->is_lost();
  if (has_lost_device && header_.respawns) end_for_lost_device(attachment_.slot(), failure.text);
  const bool is_own = failure.origin == FailureOf::this_rank;
  Outbox& outbox = own_outbox();
  outbox.error_kind = failure.kind;
  outbox.native_code = failure.native_code;
  outbox.failed_ns = is_own ? now_ns() : std::numeric_limits<std::int64_t>::max();
  outbox.failed_phase = phase_of(attachment_.slot().progress.load(std::memory_order_relaxed));
  put_text(outbox.message, failure.text);
  outbox.vote = Vote::failed;
  outbox.is_fatal = has_lost_device;
  // This is also done if outputs fail to be reduced. This rank's communicator is then gone, so all ranks make new ones.
  const bool uses_comm = command.comm.path() == CommPath::devices && interruption_.needs_peers();
  if (uses_comm) raise_to(header_.failed_comm(command.comm), current_);
  forget_children_that_came();
  command.failed.store(current_, std::memory_order_seq_cst);
  header_.to_peers.ring();
  if (meets_across_nodes(command.comm)) header_.to_master.ring();  // other nodes have to know
  // Peers work in the memory of this rank in collectives, and when they reduce its outputs after its vote.
  const bool has_voted_ok = attachment_.slot().vote.load(std::memory_order_relaxed) == vote_word(current_, Vote::ok);
  if (may_meet(command) || has_voted_ok) left_memory_.keep(command);
  if (may_meet(command)) drop_scratch();
  running_->discard();
  device_->abandon();
}

namespace {

LogLevel log_level_from_environment() {
  const char* text = environment::get(environment::kLogLevel);
  return text == nullptr ? LogLevel::warning : parse_log_level(text).value_or(LogLevel::warning);
}

}  // namespace

}  // namespace syncrun::detail

#include "worker/loop/command_loop.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <limits>
#include <random>
#include <string>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::loop {

namespace {

std::int64_t now_ns() noexcept { return os::Clock::now().time_since_epoch().count(); }

void raise_to(std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept {
  std::uint64_t known = word.load(std::memory_order_relaxed);
  while (known < value && !word.compare_exchange_weak(known, value, std::memory_order_acq_rel)) {
  }
}

std::unique_ptr<devices::WorkerDevice> make_device(const devices::DeviceContext& context) {
  context.attachment.slot().progress.store(protocol::progress_word(0, protocol::Phase::device),
                                           std::memory_order_release);
  context.attachment.fault_point(0, protocol::Phase::device);
  if (context.attachment.slot().device_kind == DeviceKind::cuda) return devices::make_cuda_device(context);
  return devices::make_cpu_device(context);
}

/// Whether ranks can wait for each other in this command.
bool may_meet(const protocol::Command& command) noexcept { return command.has_comm && !command.ranks.is_single(); }

/// Ends this process, so that a new worker takes its rank. Runs no destructors: those of a device that lost its context may
/// wait for ever.
[[noreturn]] void end_for_lost_device(protocol::WorkerSlot& slot, const std::string& why) {
  text::put_text(slot.reason, why);
  std::fprintf(stderr, "syncrun worker: cannot go on: %s\n", why.c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

LogLevel log_level_from_environment() {
  const char* text = environment::get(environment::kLogLevel);
  return text == nullptr ? LogLevel::warning : text::parse_log_level(text).value_or(LogLevel::warning);
}

std::mt19937_64 generator_of(std::uint64_t seed, int rank) {
  std::seed_seq words{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U),
                      static_cast<std::uint32_t>(rank)};
  return std::mt19937_64(words);
}

}  // namespace

CommandLoop::CommandLoop(process::Attachment& attachment)
    : attachment_(attachment),
      header_(attachment_.control.header()),
      host_(attachment_),
      device_(make_device({attachment_, host_.arena, host_.peers, host_.nodes.get(), host_.rendezvous,
                           host_.interruption, [this] { ahead_.copy_inputs(); },
                           [this](std::size_t bytes) { return variables_.drop_spare(bytes, inbox_.current()); }})),
      parts_(device_->parts()),
      comms_(attachment_, host_.arena, host_.peers, *device_, host_.nodes.get()),
      variables_(attachment_, parts_, comms_, [this] { running_.recordings().note_stale(); }),
      copy_files_(attachment_, parts_.memory, host_.arena, variables_),
      running_(attachment_, parts_, comms_, files_, host_.outgoing, variables_),
      inbox_(attachment_, *device_),
      ahead_(attachment_, inbox_, variables_, running_.inputs()),
      functions_(attachment_),
      tools_{CpuWorker(*this),
             CudaWorker(*this),
             text::make_logger(attachment_.device, log_level_from_environment(), attachment_.rank),
             generator_of(header_.seed, attachment_.rank),
             {parts_.memory, running_.recordings()},
             {}} {}

const devices::DeviceParts& CommandLoop::gpu() const {
  if (!parts_.is_gpu()) text::throw_usage("a CPU device has no stream and no CUDA library handles");
  return parts_;
}

// ---- the serve loop -------------------------------------------------------------------------------------------

int CommandLoop::serve() {
  protocol::WorkerSlot& slot = attachment_.slot();
  text::put_text(slot.hardware, device_->hardware());
  slot.is_closed_to_peers = !parts_.peers.is_open_to_peers();
  set_phase(protocol::Phase::idle);
  slot.start.store(protocol::StartState::ready, std::memory_order_seq_cst);
  header_.to_master.ring();

  attachment_.fault_point(0, protocol::Phase::idle);

  while (protocol::Command* const next = inbox_.await_command()) {
    protocol::Command& command = *next;
    process::end_if_forked();
    ahead_.begin(command.kind == protocol::CommandKind::call ? &command : nullptr);
    host_.interruption.begin(
        command, command.has_comm ? comm::CallInterruption::Peers::needed : comm::CallInterruption::Peers::not_needed);
    process::note_command(inbox_.current());
    if (command.kind == protocol::CommandKind::close) {
      enter_phase(protocol::Phase::close);
      tools_.objects.destroy_all();
      process::throw_if_child_came();  // no later call could report it
      return 0;
    }
    try {
      execute(command);
    } catch (const process::SessionLost&) {
      if (!header_.respawns) break;
      give_up_for_loss(command);
    }
    finish(command);
    attachment_.fault_point(inbox_.current(), protocol::Phase::idle);
  }
  return 0;  // the session has ended without a close command: the master does the rest
}

void CommandLoop::finish(const protocol::Command& command) noexcept {
  const bool had_peers = may_meet(command);  // once this rank is done, the slot may contain another command
  if (had_peers) host_.meetings.leave(command);
  set_phase(protocol::Phase::idle);
  attachment_.slot().done.store(inbox_.current(), std::memory_order_seq_cst);
  header_.to_master.ring();
  if (had_peers) header_.to_peers.ring();  // a peer may wait until this rank no longer reads its buffers
}

void CommandLoop::execute(protocol::Command& command) {
  host_.outgoing.collect();
  host_.left_memory.collect();
  if (inbox_.has_lost_a_rank(command)) return give_up_for_loss(command);
  inbox_.await_needs_of(command);
  if (inbox_.depends_on_a_failure(command)) {
    report_failure(command,
                   {ErrorKind::function, 0, "a call on which this one depends failed", process::FailureOf::peer});
    return cast_vote(command, protocol::Vote::failed);  // a faster peer may be waiting for this vote
  }
  protocol::Outbox& outbox = inbox_.outbox();
  try {
    if (command.has_comm) comms_.of(command).begin(command);
    switch (command.kind) {
      case protocol::CommandKind::call: return run_call(command);
      case protocol::CommandKind::destroy:
        set_phase(protocol::Phase::function);  // a destructor of the user runs here
        tools_.objects.destroy(command.as<protocol::DestroyPayload>().object);
        process::throw_if_child_came();
        break;
      case protocol::CommandKind::unmap: return files_.forget(command.as<protocol::UnmapPayload>().file);
      case protocol::CommandKind::collective:
        enter_phase(protocol::Phase::collective);
        variables_.run_collective(command);
        break;
      case protocol::CommandKind::transfer:
        enter_phase(protocol::Phase::inputs);
        variables_.run_transfer(command.as<protocol::TransferPayload>());
        break;
      case protocol::CommandKind::move:
        enter_phase(protocol::Phase::inputs);
        variables_.run_move(command);
        break;
      case protocol::CommandKind::files:
        enter_phase(protocol::Phase::inputs);
        copy_files_.run(command.as<protocol::FilesPayload>());
        break;
      case protocol::CommandKind::free:
        enter_phase(protocol::Phase::inputs);
        variables_.free(command.as<protocol::FreePayload>());
        break;
      case protocol::CommandKind::memory:
        *attachment_.segment.at<protocol::MemorySize>(command.as<protocol::MemoryPayload>().to) =
            device_->memory_size();
        break;
      case protocol::CommandKind::look:
        enter_phase(protocol::Phase::inputs);
        files_.look(attachment_.segment, command.as<protocol::LookPayload>(), attachment_.rank);
        break;
      case protocol::CommandKind::connect:
        enter_phase(protocol::Phase::collective);
        host_.nodes->connect(command.as<protocol::ConnectPayload>());
        break;
      case protocol::CommandKind::unpin:
        enter_phase(protocol::Phase::inputs);
        device_->unpin();
        break;
      case protocol::CommandKind::close: break;
    }
    outbox.vote = protocol::Vote::ok;
  } catch (...) {
    report_failure(command, process::current_failure(process::ThrownThrough::library));
  }
  if (command.wants_vote) {
    cast_vote(command, outbox.vote);
    // No rank starts the next collective before all ranks know how this one ended.
    if (!host_.meetings.all_voted_ok(command)) note_failure_elsewhere(command);
  }
}

/// A peer is lost and will be replaced. Until then, commands that are already published fail. A vote that was cast stays:
/// peers may have committed their updates because of it.
void CommandLoop::give_up_for_loss(protocol::Command& command) {
  const bool has_voted = attachment_.slot().vote.load(std::memory_order_relaxed) >=
                         protocol::vote_word(inbox_.current(), protocol::Vote::none);
  report_failure(command, {ErrorKind::worker_lost, 0, "a worker was lost", process::FailureOf::peer});
  if (!has_voted) cast_vote(command, protocol::Vote::failed);
}

// ---- calls ----------------------------------------------------------------------------------------------------

void CommandLoop::run_call(protocol::Command& command) {
  protocol::Outbox& outbox = inbox_.outbox();
  bool has_thrown = false;
  try {
    if (command.call().arguments_count != 0) enter_phase(protocol::Phase::inputs);
    running_.begin(command, inbox_.current());
    const LoadedFunction& function = functions_.at(command.call().function);
    if (command.call().constructs) enter_phase(protocol::Phase::function);
    if (command.call().is_measured) host_.peers.own_time().begin();
    WorkerCall call(*this);
    function.thunk(call, function.pointer);
    if (command.call().is_measured) outbox.own_ns = own_ns();
    process::throw_if_child_came();
    running_.inputs().check_files();
    running_.outputs().deliver(outbox);
    // A body may have caught the exception of a collective.
    // Read only where it matters: `failed` has a cache line of its own.
    const auto has_failed = [&] {
      return command.failed.load(std::memory_order_acquire) == inbox_.current() ||
             host_.left_memory.has_left(inbox_.current());
    };
    if (command.has_comm && has_failed()) throw process::Abandoned();
    outbox.vote = protocol::Vote::ok;
  } catch (...) {
    has_thrown = true;
    host_.peers.own_time().end();
    const process::CaughtFailure failure = process::current_failure(process::ThrownThrough::user_code);
    const bool is_own = failure.origin == process::FailureOf::this_rank;
    report_failure(command, is_own ? missing_file().value_or(failure) : failure);
  }
  // The destructor of the exception, which is user code, has run just now. It may have forked.
  if (has_thrown) [[unlikely]] {
    const process::UserCode destructor;
  }

  cast_vote(command, outbox.vote);
  complete_call(command, outbox);
  // A failure of the device comes before the call has begun.
  if (running_.slices().id() != inbox_.current()) return;
  count_call();
  running_.end(inbox_.current());
}

/// Only this thread writes the numbers, so it needs no atomic addition.
void CommandLoop::count_call() noexcept {
  protocol::WorkerSlot& slot = attachment_.slot();
  const auto add = [](std::atomic<std::uint64_t>& sum, std::int64_t number) {
    sum.store(sum.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(number), std::memory_order_relaxed);
  };
  add(slot.calls, 1);
  add(slot.rows, running_.slices().scattered_rows());
}

/// How long this rank has worked in a measured call. The work on a GPU counts until its end.
std::int64_t CommandLoop::own_ns() {
  parts_.memory.finish();
  return host_.peers.own_time().end().count();
}

/// If a file has become shorter, the body may have failed because it read zeros in place of the missing bytes. Then the
/// missing bytes are the failure to report.
std::optional<process::CaughtFailure> CommandLoop::missing_file() {
  if (running_.slices().id() != inbox_.current()) return std::nullopt;
  try {
    running_.inputs().check_files();
    return std::nullopt;
  } catch (const Error&) {
    return process::current_failure(process::ThrownThrough::library);
  }
}

/// Runs after this rank's vote. Updates are committed and outputs are reduced only if every rank has voted ok.
void CommandLoop::complete_call(protocol::Command& command, protocol::Outbox& outbox) {
  const bool may_reduce = outbox.vote == protocol::Vote::ok && running_.outputs().may_reduce(outbox);
  const bool waits = command.wants_vote || may_reduce;
  if (!waits) return;
  // A peer may still wait for this rank in a collective. It must learn that this rank does not come, so that it votes.
  if (may_meet(command) && !(may_reduce && running_.outputs().may_meet_after_vote())) host_.meetings.leave(command);
  set_phase(protocol::Phase::vote);
  if (!host_.meetings.all_voted_ok(command)) return note_failure_elsewhere(command);
  if (may_reduce && running_.outputs().may_meet_after_vote()) host_.interruption.note_that_peers_are_needed();
  try {
    set_phase(protocol::Phase::reduction);
    // Updates are committed first, because no other rank can make this fail. So they are committed on all ranks or on
    // none.
    if (command.wants_vote) {
      const comm::CallInterruption::Pause until_committed(host_.interruption);
      running_.updates().commit();
    }
    attachment_.fault_point(inbox_.current(), protocol::Phase::reduction);
    if (may_reduce) running_.outputs().reduce(outbox);
  } catch (...) {
    report_failure(command, process::current_failure(process::ThrownThrough::library));
  }
}

/// Stores this rank's vote, if the command has outputs or requires a vote. Outputs are reduced and updates committed
/// only if every rank has voted ok.
void CommandLoop::cast_vote(const protocol::Command& command, protocol::Vote vote) noexcept {
  const auto* const call = std::get_if<protocol::CallPayload>(&command.payload);
  const bool has_outputs = call != nullptr && call->outputs_count != 0;
  if (!has_outputs && !command.wants_vote) return;
  inbox_.outbox().cast = vote;
  attachment_.slot().vote.store(protocol::vote_word(inbox_.current(), vote), std::memory_order_seq_cst);
  header_.to_peers.ring();
  if (command.wants_vote && protocol::meets_across_nodes(command.comm)) header_.to_master.ring();
}

/// A rank that fails notes this for its peers, but cannot do so on other nodes. There the votes tell of the failure.
void CommandLoop::note_failure_elsewhere(const protocol::Command& command) noexcept {
  if (!command.comm.spans_nodes() || command.comm.path() != protocol::CommPath::devices) return;
  raise_to(header_.failed_comm(command.comm), inbox_.current());
}

void CommandLoop::report_failure(protocol::Command& command, const process::CaughtFailure& failure) {
  const bool has_lost_device = device_->is_lost();
  if (has_lost_device && header_.respawns) end_for_lost_device(attachment_.slot(), failure.text);
  const bool is_own = failure.origin == process::FailureOf::this_rank;
  protocol::Outbox& outbox = inbox_.outbox();
  outbox.error_kind = failure.kind;
  outbox.native_code = failure.native_code;
  outbox.failed_ns = is_own ? now_ns() : std::numeric_limits<std::int64_t>::max();
  outbox.failed_phase = protocol::phase_of(attachment_.slot().progress.load(std::memory_order_relaxed));
  text::put_text(outbox.message, failure.text);
  outbox.vote = protocol::Vote::failed;
  outbox.is_fatal = has_lost_device;
  outbox.may_have_updated = running_.may_have_updated(inbox_.current());
  // This is also done if outputs fail to be reduced. This rank's communicator is then gone, so all ranks make new ones.
  const bool uses_comm = command.comm.path() == protocol::CommPath::devices && host_.interruption.needs_peers();
  if (uses_comm) raise_to(header_.failed_comm(command.comm), inbox_.current());
  process::forget_children_that_came();
  command.failed.store(inbox_.current(), std::memory_order_seq_cst);
  header_.to_peers.ring();
  if (protocol::meets_across_nodes(command.comm)) header_.to_master.ring();  // other nodes have to know
  // Peers work in the memory of this rank in collectives, and when they reduce its outputs after its vote.
  const bool has_voted_ok = attachment_.slot().vote.load(std::memory_order_relaxed) ==
                            protocol::vote_word(inbox_.current(), protocol::Vote::ok);
  if (may_meet(command) || has_voted_ok) host_.left_memory.keep(command);
  if (may_meet(command)) tools_.scratch.drop();
  running_.discard();
  device_->abandon();
}

}  // namespace syncrun::detail::worker::loop

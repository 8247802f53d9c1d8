#include "master/session/session_core.hpp"

#include <utility>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "master/session/freed_variables.hpp"
#include "master/session/queue_processes.hpp"
#include "master/session/session_end.hpp"
#include "master/session/session_start.hpp"

namespace syncrun::detail::master::session {

namespace {

/// How much longer than a node a connection of ranks may be silent. The agents say first that a node is lost.
constexpr os::Milliseconds kTurnOfAgents{2000};

}  // namespace

// ---- opening --------------------------------------------------------------------------------------------------

SessionCore::SessionCore(const SessionOptions& options, const MakePool& make_pool) {
  os::open_missing_standard_streams();
  settings_ = settings::resolve_settings(options);
  logger_ = text::make_logger("syncrun", settings_.log_level);
  pool_ = make_pool(settings_);
  process::check_output(settings_.output, static_cast<int>(settings_.devices.size()), !settings_.log_dir.empty());
  devices_ = devices::RankDevices(settings_.devices, settings_.nodes);
  auto& header = control().header();
  calls_.attach(control());
  report_.emplace(*pool_, calls_, settings::device_names(settings_));
  heap_ = os::SharedHeap(segment(), header.heap_offset, header.heap_bytes, protocol::pages_of(devices_.kinds()));
  profiler_ = begin_profile(settings_, header, memory());  // each node has timelines of its own
  exporter_ = begin_metrics(settings_, header, memory());
  heap_.watch_growth([this](std::size_t used_bytes) { pool_->note_shared_memory(used_bytes); });
  pool_->follow_heap(heap_);
  commands_.emplace(dispatch::CommandDispatcher::Parts{.pool = *pool_,
                                                       .calls = calls_,
                                                       .report = *report_,
                                                       .memory = memory(),
                                                       .devices = devices_,
                                                       .state = state_,
                                                       .ends = *this,
                                                       .profiler = profiler_.get(),
                                                       .call_timeout = settings_.call_timeout});
  if (settings_.nodes.size() > 1 && settings_.has_node_links)
    node_links_.emplace(*commands_, *logger_, settings_.link_interface, settings_.node_silence + kTurnOfAgents);
  recovery_.emplace(Recovery::Parts{.pool = *pool_,
                                    .calls = calls_,
                                    .report = *report_,
                                    .commands = *commands_,
                                    .registry = registry_,
                                    .logger = *logger_,
                                    .start_timeout = settings_.start_timeout},
                    settings_.max_respawns);
  pool_->start();
  await_ready(*pool_, *report_, settings_.start_timeout);
  pool_->watch();
  for (const int rank : all_ranks()) {
    if (control().worker(rank).is_closed_to_peers) devices_.note_closed_to_peers(rank);
  }
  for (const int rank : all_ranks()) logger_->info(report_->describe_rank(rank) + " is ready");
  announce(settings_, control(), *logger_);
  state_.open();
}

// ---- entries --------------------------------------------------------------------------------------------------

SessionCore::Entry::Entry(SessionCore& session) : session_(session) {
  if (!session_.state_.enter()) {
    text::throw_usage("a session is used from one thread at a time: another thread is inside a call of it");
  }
  try {
    session_.check_open();
    if (session_.registry_.has_releases() || session_.commands_->holds_large_values()) session_.release_memory();
  } catch (...) {
    session_.state_.leave();
    throw;
  }
}

void SessionCore::release_memory() {
  commands_->collect_complete();
  // If a rank has a full inbox, what concerns it waits for a later entry, and not this entry for the rank.
  registry_.run_releases([this] { return !calls_.blocker(all_ranks()); });
  free_variables(*commands_, registry_);
}

void SessionCore::give_up(std::uint64_t offset, os::SharedHeap::Giveback giveback) noexcept {
  release([this, offset, giveback] { heap_.free(offset, giveback); });
}

// ---- the end: the program closed the session, or a worker was lost, was late, or lost its device -----------------

void SessionCore::end_with_loss(std::uint64_t id) {
  if (const auto watch_failure = pool_->watch_failure()) end_with(*watch_failure);
  SeenLoss loss = describe_seen_loss(*pool_, *report_);
  const bool may_replace = settings_.on_worker_lost == OnWorkerLost::respawn && state_.was_opened() && !is_closing_ &&
                           !recovery_->is_running();
  if (!may_replace) end_with(report_->lost(std::move(loss.failure), loss.where, loss.wait_status));
  const bool is_waiting_for_it = calls_.is_in_flight(id);
  const os::Milliseconds limit =
      is_waiting_for_it ? os::Milliseconds(calls_.command(id).timeout_ms) : settings_.call_timeout;
  try {
    recovery_->replace_lost(std::move(loss.failure), loss.where, loss.wait_status, limit);
  } catch (const Error& error) {
    end_with(error);
  }
}

void SessionCore::end_with(const Error& error) {
  state_.set_cause(error);
  calls_.fail_all(std::make_exception_ptr(error));
  abandon();
  throw error;
}

void SessionCore::close() {
  if (state_.is_here() && !state_.was_opened()) return;
  const Entry entry(*this);  // to the end: no other thread may call workers that end
  is_closing_ = true;
  commands_->drain_all();
  commands_->next_command(all_ranks()).begin<protocol::ClosePayload>();
  pool_->expect_ends();
  calls_.release(commands_->publish(), nullptr);
  const auto failure = await_ends_at_close(*pool_, *report_, calls_.last_published(), settings_.grace);
  const auto dropped = calls_.failures().dropped();
  state_.set_cause(failure);
  abandon();
  if (failure) throw Error(*failure);
  if (dropped) std::rethrow_exception(dropped);
  if (output_failure_) throw Error(*std::exchange(output_failure_, std::nullopt));
}

void SessionCore::add_queue(const std::shared_ptr<QueueProcesses>& queue) {
  std::erase_if(queues_, [](const auto& known) { return known.expired(); });
  queues_.push_back(queue);
}

void SessionCore::abandon() noexcept {
  if (state_.is_closed()) return;
  state_.end();
  for (const auto& known : queues_) {
    if (const auto queue = known.lock()) queue->end();
  }
  if (pool_) pool_->end();
  if (state_.is_here()) {
    end_output(profiler_.get());
    end_output(exporter_.get());
  }
  calls_.forget_all();
  registry_.forget_releases();
  only_.release();
}

/// close() throws the first error of writing the profile or the metrics. Without a close, the destructor logs it.
template <class Output>
void SessionCore::end_output(Output* output) noexcept {
  if (output == nullptr) return;
  try {
    output->close();
  } catch (const Error& error) {
    if (!output_failure_) output_failure_ = error;
  }
}

SessionCore::~SessionCore() {
  abandon();
  if (!state_.is_here()) static_cast<void>(exporter_.release());  // its thread is one of the parent's
  if (output_failure_) logger_->warn(output_failure_->what());
}

}  // namespace syncrun::detail::master::session

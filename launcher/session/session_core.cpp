#include "launcher/session/session_core.hpp"

#include <utility>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "launcher/nodes/remote_nodes.hpp"
#include "launcher/session/freed_variables.hpp"
#include "launcher/session/restored_values.hpp"
#include "launcher/session/session_end.hpp"
#include "launcher/session/session_start.hpp"

namespace syncrun::detail {

// ---- opening --------------------------------------------------------------------------------------------------

SessionCore::SessionCore(const SessionOptions& options, const MakePool& make_pool) {
  open_missing_standard_streams();
  settings_ = resolve_settings(options);
  logger_ = make_logger("syncrun", settings_.log_level);
  pool_ = make_pool(settings_);
  devices_ = RankDevices(settings_.devices, settings_.nodes);
  auto& header = control().header();
  calls_.attach(control());
  report_.emplace(*pool_, calls_, device_names(settings_));
  recovery_.emplace(*pool_, calls_, *report_, recovery_steps(), settings_.max_respawns);
  heap_ = SharedHeap(segment(), header.heap_offset, header.heap_bytes, pages_of(devices_.kinds()));
  profiler_ = begin_profile(settings_, header, memory());  // each node has timelines of its own
  heap_.watch_growth([this](std::size_t used_bytes) { pool_->note_shared_memory(used_bytes); });
  if (RemoteNodes* const nodes = pool_->other_nodes()) heap_.note_changes(nodes->changes());
  commands_.emplace(CommandRunner::Parts{.pool = *pool_,
                                         .calls = calls_,
                                         .report = *report_,
                                         .memory = memory(),
                                         .devices = devices_,
                                         .state = state_,
                                         .ends = *this,
                                         .profiler = profiler_.get(),
                                         .call_timeout = settings_.call_timeout});
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

Recovery::Steps SessionCore::recovery_steps() {
  return {.collect = [this](std::uint64_t id) { commands_->collect(id); },
          .free = [this](std::uint64_t offset) { heap_.free(offset, SharedHeap::Giveback::later); },
          .forget_copies = [this](int rank) { forget_copies(memory(), registry_, rank); },
          .await_ready =
              [this](const std::vector<int>& ranks) {
                await_ready(*pool_, *report_, settings_.start_timeout);
                for (const int rank : ranks) {
                  logger_->warn(report_->describe_rank(rank) + " takes the place of a worker that was lost");
                }
              },
          .pass_on = [this](const std::vector<int>& ranks,
                            Failure& failure) { pass_on(*commands_, registry_, ranks, failure); }};
}

// ---- entries --------------------------------------------------------------------------------------------------

SessionCore::Entry::Entry(SessionCore& session) : session_(session) {
  if (!session_.state_.enter()) {
    throw_usage("a session is used from one thread at a time: another thread is inside a call of it");
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

void SessionCore::give_up(std::uint64_t offset, SharedHeap::Giveback giveback) noexcept {
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
  const Milliseconds limit = is_waiting_for_it ? Milliseconds(calls_.command(id).timeout_ms) : settings_.call_timeout;
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
  commands_->next_command(all_ranks()).begin<ClosePayload>();
  pool_->expect_ends();
  calls_.release(commands_->publish(), nullptr);
  const auto failure = await_ends_at_close(*pool_, *report_, calls_.last_published(), settings_.grace);
  const auto dropped = calls_.failures().dropped();
  state_.set_cause(failure);
  abandon();
  if (failure) throw Error(*failure);
  if (dropped) std::rethrow_exception(dropped);
  if (profile_failure_) throw Error(*std::exchange(profile_failure_, std::nullopt));
}

void SessionCore::abandon() noexcept {
  if (state_.is_closed()) return;
  state_.end();
  registry_.end_dependants();
  if (pool_) pool_->end();
  if (state_.is_here()) end_profile();
  calls_.forget_all();
  registry_.forget_releases();
  only_.release();
}

/// close() throws the error of writing the profile. Without a close, the destructor logs it.
void SessionCore::end_profile() noexcept {
  if (!profiler_) return;
  try {
    profiler_->close();
  } catch (const Error& error) {
    profile_failure_ = error;
  }
}

SessionCore::~SessionCore() {
  abandon();
  if (profile_failure_) logger_->warn(profile_failure_->what());
}

}  // namespace syncrun::detail

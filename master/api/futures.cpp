// Waiting for calls in flight: one, any of several, all of several, or those on a device.

#include <algorithm>
#include <string>
#include <utility>

#include "common/text/errors.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/device.hpp"

namespace syncrun::detail {

namespace {

/// True if a worker was lost, and get() would therefore throw without a wait for any call. If the session replaces lost
/// workers, get() first waits for all calls of the survivors, because some of these calls keep their results.
bool is_lost(master::session::SessionCore& session) {
  if (!session.commands().has_lost_worker()) return false;
  return !session.control().header().respawns || session.calls().are_survivors_done();
}

/// For a call that has no result yet. Returns true if the program should call get() now, because the call is lost or has
/// failed. If a deadline passes while the program polls, the session ends, as in a wait. get() throws the error of the
/// deadline or of the loss. Finding the cause of a loss and replacing a worker may take a while, so both are left to
/// get().
bool is_given_up(master::session::SessionCore& session, const CallResult& result) {
  if (is_lost(session)) return true;
  try {
    session.commands().count_poll();
  } catch (const Error&) {
    if (!result.finished) throw;
  }
  return result.finished;
}

}  // namespace

std::shared_ptr<CallResult> take_result(master::session::SessionCore& session, std::shared_ptr<CallResult>& future) {
  if (!future) text::throw_usage("Future::get was called twice");
  std::shared_ptr<CallResult> result;
  if (future->finished) {
    result = std::exchange(future, nullptr);
  } else {
    const master::session::SessionCore::Entry entry(
        session);  // before the future loses the result: the entry may be refused
    result = std::exchange(future, nullptr);
    if (const auto id = session.calls().command_of(*result)) session.commands().await(*id);
  }
  check_launched(session, *result);
  if (!result->finished) text::throw_usage("the session was closed before this call's result was there");
  return result;
}

void check_launched(master::session::SessionCore& session, const CallResult& result) {
  if (!result.error) return;
  session.calls().failures().has_surfaced(result.error);
  std::rethrow_exception(result.error);
}

bool is_ready(master::session::SessionCore& session, CallResult& result) {
  if (result.finished) return true;
  const master::session::SessionCore::Entry entry(session);
  const auto id = session.calls().command_of(result);
  if (id && !session.calls().is_collectable(*id)) return is_given_up(session, result);
  if (id) session.commands().await(*id);
  return result.finished;
}

std::size_t wait_any(master::session::SessionCore& session, std::span<CallResult* const> results) {
  const master::session::SessionCore::Entry entry(session);
  if (std::all_of(results.begin(), results.end(), [](const CallResult* result) { return result == nullptr; })) {
    text::throw_usage("wait_any requires a future whose result was not fetched yet, got " +
                      std::to_string(results.size()) + (results.empty() ? " futures" : " that were fetched"));
  }
  return session.commands().await_any(results);
}

void wait_all(master::session::SessionCore& session, std::span<CallResult* const> results) {
  const master::session::SessionCore::Entry entry(session);
  for (const CallResult* const result : results) {
    if (result == nullptr) continue;
    if (const auto id = session.calls().command_of(*result)) session.commands().await(*id);
  }
}

void synchronize(master::session::SessionCore& session, int rank) {
  const master::session::SessionCore::Entry entry(session);
  if (rank < 0 || rank >= session.world_size()) {
    text::throw_usage("synchronize requires a device of this session, which has ranks 0 to " +
                      std::to_string(session.world_size() - 1) + ", got rank " + std::to_string(rank));
  }
  while (const auto id = session.calls().first_on(rank)) session.commands().await(*id);
  if (const auto failure = session.calls().failures().take_dropped()) std::rethrow_exception(failure);
}

std::vector<int> ranks_of(std::span<const Device> devices) {
  if (devices.empty()) text::throw_usage("on() requires one device or more, got an empty set");
  std::vector<int> ranks;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t other = 0; other < i; ++other) {
      if (devices[other].asked_for() != devices[i].asked_for()) continue;
      text::throw_usage("on() requires each device once, got '" + devices[i].asked_for() + "' twice");
    }
    if (std::find(ranks.begin(), ranks.end(), devices[i].rank()) == ranks.end()) ranks.push_back(devices[i].rank());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace syncrun::detail

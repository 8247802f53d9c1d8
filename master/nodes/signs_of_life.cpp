#include "master/nodes/signs_of_life.hpp"

#include <string>
#include <utility>

#include "master/nodes/messages.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// How long a node is awaited after the last note_wait_for().
constexpr std::chrono::seconds kWait{1};

std::int64_t now_ns() noexcept { return os::Clock::now().time_since_epoch().count(); }

/// "3.0"
std::string seconds_text(os::Milliseconds time) {
  const auto tenths = time.count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

}  // namespace

/// Pieces of a large message count as a sign of life, because a sign of life has to wait behind them.
bool SignsOfLife::is_silent(int node, std::chrono::nanoseconds waited, os::Milliseconds limit) {
  Heard& heard = at(node);
  if (const auto pieces = transport_.pieces_from(node); std::exchange(heard.pieces, pieces) != pieces)
    note_message(node);
  return std::chrono::nanoseconds(heard.silent_ns.fetch_add(waited.count()) + waited.count()) >= limit;
}

std::optional<Error> SignsOfLife::silence_of(int node, std::chrono::nanoseconds waited) {
  if (!is_silent(node, waited, limits_.silence)) return std::nullopt;
  return Error(ErrorKind::worker_lost, nodes_.name_of(node) + " is silent for " + seconds_text(limits_.silence) +
                                           " s: " + (node == kMasterNode ? "the master" : "its agent") +
                                           " was killed or stopped, the machine is down, or the network is "
                                           "(--node-timeout sets another limit)");
}

void SignsOfLife::note_wait_for(int node) noexcept {
  at(node).awaited_until_ns.store(now_ns() + std::chrono::nanoseconds(kWait).count(), std::memory_order_relaxed);
}

bool SignsOfLife::is_awaited(int node) const noexcept {
  const std::int64_t until = at(node).awaited_until_ns.load(std::memory_order_relaxed);
  return until != 0 && until > now_ns();
}

/// As long as something leaves for the node, the link is not down. The ping may wait behind that, so the answer may come
/// later.
std::optional<Error> SignsOfLife::silence_of_peer(int node, std::chrono::nanoseconds waited) {
  if (const auto left = transport_.pieces_to(node); std::exchange(at(node).pieces_left, left) != left)
    note_message(node);
  const auto limit = limits_.silence + limits_.masters_turn;
  if (!is_silent(node, waited, limit)) return std::nullopt;
  return Error(ErrorKind::worker_lost, "nothing is heard from " + nodes_.name_of(node) + " for " + seconds_text(limit) +
                                           " s, but the master hears from both: the network between them is down "
                                           "(--node-timeout sets another limit)");
}

}  // namespace syncrun::detail::master::nodes

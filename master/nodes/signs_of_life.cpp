#include "master/nodes/signs_of_life.hpp"

#include <algorithm>
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

/// A node whose last signs came a little later is silent for the same reason: within two beats, or a third of the limit.
std::vector<int> SignsOfLife::also_silent(int node) const {
  std::vector<int> others;
  const os::Milliseconds later = std::min(limits_.silence / 2, std::max(limits_.silence / 3, 2 * limits_.beat));
  for (int other = 0; other < known_nodes_.count(); ++other) {
    if (other != node && os::Clock::duration(at(other).silent_ns.load()) >= limits_.silence - later)
      others.push_back(other);
  }
  return others;
}

std::optional<Error> SignsOfLife::silence_of(int node, std::chrono::nanoseconds waited) {
  if (!is_silent(node, waited, limits_.silence)) return std::nullopt;
  const std::string limit = seconds_text(limits_.silence) + " s";
  const std::string end = " (--node-timeout sets another limit)";
  if (node == kMasterNode) {
    return Error(ErrorKind::worker_lost,
                 known_nodes_.name_of(node) + " is silent for " + limit +
                     ": the master was killed or stopped, the machine is down, or the network is" + end);
  }
  const std::vector<int> others = also_silent(node);
  if (const int agents = known_nodes_.count() - 1; agents > 1 && static_cast<int>(others.size()) == agents - 1) {
    return Error(ErrorKind::worker_lost, "no other node is heard for " + limit + ": the network of " +
                                             known_nodes_.name_of(kMasterNode) +
                                             " is down, on which the program runs, or all other machines are" + end);
  }
  std::string names = known_nodes_.name_of(node);
  for (const int other : others) names += ", " + known_nodes_.name_of(other);
  return Error(ErrorKind::worker_lost,
               names +
                   (others.empty()
                        ? " is silent for " + limit + ": its agent was killed or stopped, the machine is down"
                        : " are silent for " + limit + ": their agents were killed or stopped, the machines are down") +
                   ", or the network is" + end);
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
  return Error(ErrorKind::worker_lost, "nothing is heard from " + known_nodes_.name_of(node) + " for " +
                                           seconds_text(limit) +
                                           " s, but the master hears from both: the network between them is down "
                                           "(--node-timeout sets another limit)");
}

}  // namespace syncrun::detail::master::nodes

#include "master/nodes/arrivals.hpp"

#include <utility>

#include "master/nodes/messages.hpp"

namespace syncrun::detail::master::nodes {

bool Arrivals::collect() {
  const os::MutexLock lock(mutex_);
  try {
    while (auto arrival = transport_.receive()) {
      signs_.note_message(arrival->node);
      if (arrival->message.empty()) continue;
      const auto kind = static_cast<MessageKind>(arrival->message.front());
      if (kind == MessageKind::beat) continue;
      if (kind == MessageKind::ping) {
        signs_.note_ping(arrival->node);
        continue;
      }
      // nothing comes after a message of these kinds
      if (kind == MessageKind::bye || kind == MessageKind::fault) known_nodes_.note_end(arrival->node);
      waiting_.push_back(*std::move(arrival));
      activity_.note();
      return true;
    }
  } catch (const Error&) {
    // An engine may report a node that has died here, without its number. Its silence shows which one it is.
  }
  return false;
}

std::optional<Transport::Arrival> Arrivals::next() {
  const os::MutexLock lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  std::optional next(std::move(waiting_.front()));
  waiting_.pop_front();
  return next;
}

}  // namespace syncrun::detail::master::nodes

#pragma once

// Messages that have arrived and wait until somebody listens.

#include <deque>
#include <optional>

#include "common/os/mutex.hpp"
#include "master/nodes/activity.hpp"
#include "master/nodes/known_nodes.hpp"
#include "master/nodes/signs_of_life.hpp"
#include "master/nodes/transport.hpp"

namespace syncrun::detail::master::nodes {

class Arrivals {
 public:
  /// Refers to all arguments as long as it lives.
  Arrivals(Transport& transport, KnownNodes& nodes, SignsOfLife& signs, Activity& activity)
      : transport_(transport), known_nodes_(nodes), signs_(signs), activity_(activity) {}

  /// Receives the next message. Signs of life are handled here, because they must not wait for a listener. Returns false
  /// if no other message has come.
  bool collect();
  /// The oldest message that waits.
  std::optional<Transport::Arrival> next();

 private:
  Transport& transport_;
  KnownNodes& known_nodes_;
  SignsOfLife& signs_;
  Activity& activity_;
  os::Mutex mutex_;  // also while messages are received, so that they stay in order
  std::deque<Transport::Arrival> waiting_ SYNCRUN_GUARDED_BY(mutex_);
};

}  // namespace syncrun::detail::master::nodes

#pragma once

// When the master last saw each rank make progress. Only long waits look at the ranks, about once per kLap. So a call
// that ends within the first kLap has no cost from this. A rank does nothing for it.

#include <vector>

#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"

namespace syncrun::detail::master::pool {

class Heartbeats {
 public:
  void look(const protocol::ControlBlock& control, os::Clock::time_point now) {
    seen_.resize(static_cast<std::size_t>(control.world_size()), Seen{0, 0, now});
    for (int rank = 0; rank < control.world_size(); ++rank) {
      const protocol::WorkerSlot& slot = control.worker(rank);
      const std::uint64_t progress = slot.progress.load(std::memory_order_acquire);
      const std::uint64_t steps = slot.collective_step.load(std::memory_order_acquire);
      Seen& seen = seen_[static_cast<std::size_t>(rank)];
      if (seen.progress != progress || seen.steps != steps) seen = {progress, steps, now};
    }
  }
  /// How long the rank has made no progress, as far as the master has seen. The true time may be longer. Needs a look()
  /// first.
  os::Milliseconds age(int rank, os::Clock::time_point now) const {
    return std::chrono::duration_cast<os::Milliseconds>(now - seen_[static_cast<std::size_t>(rank)].since);
  }

 private:
  struct Seen {
    // progress may have the same value before and after a step of a collective, so the steps are compared too
    std::uint64_t progress;
    std::uint64_t steps;
    os::Clock::time_point since;
  };
  std::vector<Seen> seen_;
};

}  // namespace syncrun::detail::master::pool

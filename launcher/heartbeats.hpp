#pragma once

// When the master last saw each rank move. Only long waits look (once per kLap, from the first on), so that it costs a
// call nothing that is over by then; a rank never does anything for it.

#include <vector>

#include "common/control_block.hpp"
#include "common/wait.hpp"

namespace syncrun::detail {

class Heartbeats {
 public:
  void look(const ControlBlock& control, Clock::time_point now) {
    seen_.resize(static_cast<std::size_t>(control.world_size()), Seen{0, 0, now});
    for (int rank = 0; rank < control.world_size(); ++rank) {
      const WorkerSlot& slot = control.worker(rank);
      const std::uint64_t progress = slot.progress.load(std::memory_order_acquire);
      const std::uint64_t steps = slot.collective_step.load(std::memory_order_acquire);
      Seen& seen = seen_[static_cast<std::size_t>(rank)];
      if (seen.progress != progress || seen.steps != steps) seen = {progress, steps, now};
    }
  }
  /// For how long it has not been seen to move: at least. After a look.
  Milliseconds age(int rank, Clock::time_point now) const {
    return std::chrono::duration_cast<Milliseconds>(now - seen_[static_cast<std::size_t>(rank)].since);
  }

 private:
  struct Seen {
    std::uint64_t progress;  // a word says "in a collective" again after a step: hence the steps
    std::uint64_t steps;
    Clock::time_point since;
  };
  std::vector<Seen> seen_;
};

}  // namespace syncrun::detail

#pragma once

// Decides which producer's batch the program takes next, and keeps count of the batches that the program has. Pure
// bookkeeping over the block of a queue. This class never waits, and does not know processes.

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/protocol/queue_block.hpp"
#include "syncrun/queue.hpp"

namespace syncrun::detail {

class BatchTurns {
 public:
  enum class Found : std::uint8_t { none, batch, failure, end };

  BatchTurns(int producers, BatchOrder order);
  /// Called once, before anything else. `block` contains the batches.
  void attach(QueueBlock block) noexcept { block_ = block; }

  /// Checks what comes next: a batch, the failure of a producer, the end of all producers, or nothing yet. Called while
  /// waiting.
  Found look() noexcept;
  /// The producer whose batch or failure look() has found. If look() has found nothing, the producer that it waits for.
  int turn() const noexcept { return turn_; }
  /// The batch that look() has found.
  int next_batch() const noexcept;
  /// Marks that batch as taken by the program. The next producer has its turn.
  void take_next_batch() noexcept;
  /// The program no longer uses the batch, so it is free again. From any thread.
  void give_back(int batch) noexcept;
  /// True if no batch can come: each producer that could push next waits for a free batch, and the program has all of
  /// that producer's batches.
  bool is_stuck() const noexcept;

 private:
  bool is_stuck(int producer) const noexcept;

  int producers_;
  BatchOrder order_;
  QueueBlock block_;
  int turn_ = 0;
  std::vector<std::uint64_t> taken_;    // number of batches taken, by producer
  std::vector<bool> is_over_;           // by producer: its last batch was taken
  std::vector<std::atomic<int>> held_;  // by producer: number of batches that the program or a call has
};

}  // namespace syncrun::detail

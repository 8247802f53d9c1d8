#pragma once

// Decides which producer's batch the program takes next, and keeps count of the batches that the program has. Pure
// bookkeeping over the blocks of a queue. This class never waits, and does not know processes.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/os/mutex.hpp"
#include "common/protocol/queue_block.hpp"
#include "syncrun/queue.hpp"

namespace syncrun::detail::master::queues {

/// Is told of free batches, in the order in which producers fill them again.
class FreedBatches {
 public:
  virtual ~FreedBatches() = default;
  FreedBatches(const FreedBatches&) = delete;
  FreedBatches& operator=(const FreedBatches&) = delete;
  /// One thread at a time, and any thread.
  virtual void add(int batch) noexcept = 0;

 protected:
  FreedBatches() = default;
};

/// In a queue with producers on several nodes, a producer is a process with the same index on each node. Each of them
/// fills the same batches in the same order. A batch is there once all of them have pushed it.
class BatchTurns {
 public:
  enum class Found : std::uint8_t { none, batch, failure, difference, end };

  BatchTurns(int producers, BatchOrder order);
  /// Called once, before anything else. The first block is that of this node, and contains the batches. The others are
  /// copies of those of other nodes, by node. `freed` is told of free batches; it may be null.
  void attach(std::vector<protocol::QueueBlock> blocks, FreedBatches* freed = nullptr) noexcept {
    blocks_ = std::move(blocks);
    freed_ = freed;
  }

  /// Checks what comes next: a batch, the failure of a producer, a difference between nodes, the end of all producers,
  /// or nothing yet. Called while waiting.
  Found look() noexcept;
  /// The producer whose batch, failure or difference look() has found. If look() has found nothing, the producer that it
  /// waits for.
  int turn() const noexcept { return turn_; }
  /// The node of the failure that look() has found. If look() has found nothing, the first node whose batch is missing.
  int node() const noexcept { return node_; }
  /// The batch that look() has found.
  int next_batch() const noexcept;
  /// Two nodes between which look() has found a difference.
  struct Difference {
    int first;
    int second;
  };
  Difference difference() const noexcept { return difference_; }
  /// What the producer does on this node whose turn it is: "returned after 2 batches".
  std::string describe_next(int node) const;
  /// Marks that batch as taken by the program. The next producer has its turn.
  void take_next_batch() noexcept;
  /// The program no longer uses the batch, so it is free again. From any thread.
  void give_back(int batch) noexcept;
  /// True if no batch can come: each producer that could push next waits for a free batch, and the program has all of
  /// that producer's batches.
  bool is_stuck() const noexcept;

 private:
  Found look_at(int producer) noexcept;
  Found compare_batches(int producer) noexcept;
  protocol::QueueBlock own() const noexcept { return blocks_.front(); }
  std::uint64_t taken(int producer) const noexcept { return taken_[static_cast<std::size_t>(producer)]; }
  bool is_stuck(int producer) const noexcept;

  int producers_;
  BatchOrder order_;
  std::vector<protocol::QueueBlock> blocks_;
  os::Mutex freeing_;  // the order of free batches is the same everywhere
  FreedBatches* freed_ SYNCRUN_PT_GUARDED_BY(freeing_) = nullptr;
  int turn_ = 0;
  int node_ = 0;
  Difference difference_{};
  std::vector<std::uint64_t> taken_;    // number of batches taken, by producer
  std::vector<bool> is_over_;           // by producer: its last batch was taken
  std::vector<std::atomic<int>> held_;  // by producer: number of batches that the program or a call has
};

}  // namespace syncrun::detail::master::queues

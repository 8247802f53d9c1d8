#pragma once

// BatchQueue: a bounded queue of batches in the session's shared memory. Separate processes, the producers, build the
// batches in the background. Session::producers makes a BatchQueue. For the master only.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/detail/batch.hpp"
#include "syncrun/detail/batch_iterator.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/producer.hpp"

namespace syncrun {

/// The consumer's end of a queue: `for (const Digits& batch : queue) step(batch.images, batch.labels);`. The arrays of
/// a batch are Data in shared memory. They are not copied: workers read the memory to which the producer wrote. When
/// the program has no handle of the batch left, and no call in flight reads the batch, the producer can use the memory
/// again.
///
/// If a producer's function throws, the consumer first gets the batches that this producer has pushed, and then Error
/// (function). The error names the producer. If a producer dies, next() throws Error (worker_lost) at once, even if it
/// is waiting. The error contains the producer's index, its process id, the cause of its death and the last lines of
/// its standard error. Both errors end the queue. The session goes on.
template <BatchType Batch>
class BatchQueue {
 public:
  explicit BatchQueue(std::shared_ptr<detail::QueueCore> core) noexcept : core_(std::move(core)) {}
  /// If close() was not called, ends the producers at once.
  ~BatchQueue() {
    if (core_) detail::abandon_queue(*core_);
  }
  BatchQueue(BatchQueue&&) noexcept = default;
  BatchQueue& operator=(BatchQueue&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }

  /// Returns the next batch. Waits until there is one. If the functions of all producers have returned and next() has
  /// returned all their batches, returns nothing. Throws Error: usage (after close(), or if the program still holds so
  /// many batches that no producer can make one), timeout (the caller can try again). If an error ended the queue or
  /// the session, throws that error.
  std::optional<Batch> next() {
    const auto records = detail::next_batch(held());
    if (records.empty()) return std::nullopt;
    return detail::BatchTraits<Batch>::template make<Batch>(records);
  }

  /// Ends the queue: tells the producers to end, and reaps them. Drops the batches that next() has not returned. After
  /// that, using the queue is an error. Throws Error (worker_lost) if a producer did not end normally or had to be
  /// killed. The producers have ended even if close() throws.
  void close() { detail::close_queue(held()); }

  /// An input iterator over the remaining batches. A program can iterate over the batches only once.
  using Iterator = detail::BatchIterator<BatchQueue, Batch>;
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const noexcept { return {}; }

  /// The name of the queue in error messages.
  const std::string& name() const { return detail::name_of(held()); }
  /// The number of batches that can exist at once (QueueOptions::capacity).
  int capacity() const { return detail::capacity_of(held()); }
  /// The process ids of the producers on the master's node, by index.
  std::vector<int> producer_pids() const { return detail::producer_pids_of(held()); }

 private:
  detail::QueueCore& held() const { return detail::held(core_, "BatchQueue"); }

  std::shared_ptr<detail::QueueCore> core_;
};

/// The order in which batches come out of a queue.
enum class BatchOrder : std::uint8_t {
  /// One batch of each producer in turn. A producer that has no more batches is left out. The order is the same in
  /// every run.
  round_robin,
  /// The batch that is ready first. A slow producer does not delay the batches of other producers.
  arrival,
};

/// The nodes on which the producers of a queue run. In a session on one node, both are the same.
enum class ProducerPlaces : std::uint8_t {
  /// The master's node only. The rows of a batch travel to the nodes whose ranks read them.
  first_node,
  /// Each node runs all producers, with the same indices, seeds and arguments. Each rank reads the batch that was made
  /// on its own node, so rows of a batch do not travel. All nodes must make the same batches: the function may depend
  /// only on its arguments, index(), count(), rng(), and on files that are the same on each node. Rows that it pushes with
  /// push_here() may also depend on node().
  every_node,
};

/// Options of a queue.
struct QueueOptions {
  /// The number of batches that can exist at once. It includes the batches that producers are filling and the batches
  /// that the program still holds. The batches are divided evenly among the producers, at least one for each.
  /// Left out: two batches for each producer.
  std::optional<int> capacity{};
  BatchOrder order = BatchOrder::round_robin;  ///< The order in which batches come out.
  /// The name of the queue in error messages. Empty: the name of the producers' function.
  std::string name{};
  /// Environment variables of the producers. Syncrun adds or replaces these variables before it starts the producers.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// Deadline of every wait for a batch. 0 turns it off. Left out: the session's deadline.
  std::optional<std::chrono::milliseconds> timeout{};
  /// How long producers may take to end by themselves in close(). After that, Syncrun kills them.
  std::chrono::milliseconds grace{5000};
  ProducerPlaces places = ProducerPlaces::first_node;  ///< The nodes on which the producers run.
};

}  // namespace syncrun

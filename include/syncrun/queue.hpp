#pragma once

// A bounded queue of batches that processes of their own build in the background, in the session's shared memory. Made by
// Session::producers. Master only.

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
#include "syncrun/detail/handle.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/producer.hpp"

namespace syncrun {

/// The consumer's end of a queue: `for (const Digits& batch : queue) step(batch.images, batch.labels);`. The arrays of a
/// batch are Data in shared memory, and nobody copies them: workers read what the producer wrote. The place of a batch
/// returns to its producer when the last of its handles is gone and no call that reads it is in flight.
///
/// What a producer's function throws comes in its turn, after the batches it has pushed, as Error (function) that names the
/// producer. A producer that dies wakes who waits at once: Error (worker_lost) with index, process id, cause and the last
/// lines it wrote. Either ends the queue; the session goes on.
template <BatchType Batch>
class BatchQueue {
 public:
  explicit BatchQueue(std::shared_ptr<detail::QueueCore> core) noexcept : core_(std::move(core)) {}
  /// Without close() before: ends the producers at once.
  ~BatchQueue() {
    if (core_) detail::abandon_queue(*core_);
  }
  BatchQueue(BatchQueue&&) noexcept = default;
  BatchQueue& operator=(BatchQueue&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }

  /// The next batch; nothing once all producers' functions have returned and all of their batches were taken. Blocks.
  /// Throws Error: usage (after close(); the program has all of the batches itself, so that none can come), timeout (can be
  /// tried again), or what ends the queue or the session.
  std::optional<Batch> next() {
    const auto records = detail::next_batch(held());
    if (records.empty()) return std::nullopt;
    return detail::BatchTraits<Batch>::template make<Batch>(records);
  }

  /// Lets the producers end, wherever they are, and reaps them. Batches that nobody has taken are dropped. The queue is an
  /// error to use from then on. Throws Error (worker_lost) if one did not end well or had to be killed; they are gone in
  /// any case.
  void close() { detail::close_queue(held()); }

  /// To go through the batches once: what is left of them.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;
    Iterator() = default;
    explicit Iterator(BatchQueue& queue) : queue_(&queue), batch_(queue.next()) {}
    const Batch& operator*() const noexcept { return *batch_; }
    const Batch* operator->() const noexcept { return &*batch_; }
    Iterator& operator++() {
      batch_.reset();  // first: its place may be what the producer waits for
      batch_ = queue_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& at, std::default_sentinel_t) noexcept { return !at.batch_; }

   private:
    BatchQueue* queue_ = nullptr;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const noexcept { return {}; }

  const std::string& name() const { return detail::name_of(held()); }
  int capacity() const { return detail::capacity_of(held()); }
  /// Process ids of the producers, by index.
  std::vector<int> producer_pids() const { return detail::producer_pids_of(held()); }

 private:
  detail::QueueCore& held() const { return detail::held(core_, "BatchQueue"); }

  std::shared_ptr<detail::QueueCore> core_;
};

/// In which order batches come out of a queue.
enum class BatchOrder : std::uint8_t {
  round_robin,  ///< One of each producer in turn, for as long as it has any: the same in every run.
  arrival,      ///< Whichever is there: a slow producer holds nobody up.
};

/// Options of a queue.
struct QueueOptions {
  /// Batches that the producers may have in the queue, those being filled and those that the program still has included;
  /// dealt out evenly, at least one for each. Left out: two for each.
  std::optional<int> capacity{};
  BatchOrder order = BatchOrder::round_robin;
  /// For messages. Empty: the function's own.
  std::string name{};
  /// Variables added to the producers' environment, or replaced in it, before they start.
  std::vector<std::pair<std::string, std::string>> environment{};
  /// Deadline of waiting for a batch; 0 turns it off. Left out: the session's.
  std::optional<std::chrono::milliseconds> timeout{};
  /// How long producers may take to end by themselves, at the end and in close(), before they are killed.
  std::chrono::milliseconds grace{5000};
};

}  // namespace syncrun

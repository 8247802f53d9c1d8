#pragma once

// The queue block: the part of the session's segment through which the producers of a queue and its consumer, the
// master, communicate. It stays readable after the death of any process.
//
//   header | one slot per producer | one slot per batch
//
// Each batch belongs to one producer, and only this producer fills it. So a fast producer cannot use up the batches
// that a slow one needs. The states of a batch:
//
//   free --its producer--> being filled --push--> pushed --the consumer, in push order--> taken --last handle--> free
//                               \--drop--> kept by the producer, which fills it next
//
// A producer fills its free batches in the order in which the master has freed them. If producers on several nodes do
// the same, each of them fills the same batch next, whatever their speeds.
//
// The master writes the header and `closes`, initialises `life`, and writes `freed` when the last handle of a batch is
// released. A producer writes everything else. On another node than the master's, the agent writes what the master
// writes here.

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "syncrun/detail/batch.hpp"

namespace syncrun::detail::protocol {

enum class ProducerState : std::uint32_t { starting, running, ended, failed };

struct alignas(128) ProducerSlot {
  std::atomic<std::uint64_t> pushed;  // the number of batches pushed; the master polls it
  std::atomic<ProducerState> state;   // the final state is written after the last `pushed`
  std::atomic<bool> waits;            // the producer waits for a free batch; the master reads it in long waits

  alignas(64) std::atomic<std::uint64_t> freed;  // the number of batches freed, with those that were free at the start

  alignas(64) pthread_mutex_t life;  // robust; a thread of the producer holds it as long as the producer lives
  ErrorKind error_kind;              // with ProducerState::failed: this and the next two describe the exception
  std::int32_t native_code;
  std::array<char, kMessageBytes> message;
};

struct alignas(64) BatchSlot {
  /// The order of pushes: a producer with `count` batches writes the number of the batch that it pushes as its k-th
  /// into the slot of its batch k % count. At most `count` of its batches are pushed and not yet taken, so it
  /// overwrites nothing that the master still needs.
  std::uint32_t pushed;
  /// The order in which batches are freed, in the same form. At most `count` batches are free and not yet taken by the
  /// producer.
  std::uint32_t freed;
  bool has_rows_here_only;  // the producer has filled only the rows of its node (rows_of_node)
  std::array<std::int64_t, kMaxBatchArrays> rows;
};

struct BatchArray {
  BatchArrayType type;
  std::array<std::int64_t, kMaxDimensions> extents;  // the largest that a batch may have
  std::uint64_t offset;                              // in the memory of a batch
  std::uint64_t bytes;
};

/// What does not change while the queue exists.
struct QueueLayout {
  std::int32_t producers;
  std::int32_t capacity;
  std::uint32_t arrays_count;
  std::array<BatchArray, kMaxBatchArrays> arrays;
  std::uint64_t memory;  // offset of the first batch's memory in the segment
  std::uint64_t batch_bytes;

  std::uint64_t memory_bytes() const noexcept { return batch_bytes * static_cast<std::uint64_t>(capacity); }
};

struct QueueHeader : QueueLayout {
  alignas(64) std::atomic<bool> closes;  // the producers have to end
  os::Doorbell to_producers;             // rung after changes of: freed, closes
};

/// Finds the parts of a queue block at `base`. The numbers in the header determine the layout.
class QueueBlock {
 public:
  static constexpr std::size_t kAlignment = 128;

  QueueBlock() = default;
  explicit QueueBlock(std::byte* base) noexcept : base_(base) {}

  static std::size_t bytes(int producers, int capacity) noexcept {
    return batches_at(producers) + sizeof(BatchSlot) * static_cast<std::size_t>(capacity);
  }
  QueueHeader& header() const noexcept { return *reinterpret_cast<QueueHeader*>(base_); }
  ProducerSlot& producer(int index) const noexcept {
    return *reinterpret_cast<ProducerSlot*>(base_ + producers_at() +
                                            sizeof(ProducerSlot) * static_cast<std::size_t>(index));
  }
  BatchSlot& batch(int index) const noexcept {
    return *reinterpret_cast<BatchSlot*>(base_ + batches_at(header().producers) +
                                         sizeof(BatchSlot) * static_cast<std::size_t>(index));
  }
  /// The first batch of a producer. The batches are divided as evenly as possible, and earlier producers get one more
  /// if they do not divide evenly.
  int first_batch(int producer) const noexcept {
    const int each = header().capacity / header().producers;
    const int more = header().capacity % header().producers;
    return producer * each + (producer < more ? producer : more);
  }
  int producer_of(int batch) const noexcept {
    int producer = 0;
    while (batch >= first_batch(producer + 1)) ++producer;
    return producer;
  }
  int batches_of(int producer) const noexcept { return first_batch(producer + 1) - first_batch(producer); }
  /// The batch that the producer has pushed as its k-th, from 0.
  int pushed_as(int producer, std::uint64_t k) const noexcept { return static_cast<int>(in_turn(producer, k).pushed); }
  /// The batch that was freed as the k-th of this producer, from 0.
  int freed_as(int producer, std::uint64_t k) const noexcept { return static_cast<int>(in_turn(producer, k).freed); }
  /// Notes the batch as the next one that the producer has pushed. The values of the batch and its rows are complete.
  void note_pushed(int producer, int batch) const noexcept {
    auto& count = this->producer(producer).pushed;
    const std::uint64_t k = count.load(std::memory_order_relaxed);
    in_turn(producer, k).pushed = static_cast<std::uint32_t>(batch);
    count.store(k + 1, std::memory_order_seq_cst);
  }
  /// Notes the batch as the next one that is free. One thread at a time. The caller rings `to_producers`.
  void note_freed(int batch) const noexcept {
    const int producer = producer_of(batch);
    auto& count = this->producer(producer).freed;
    const std::uint64_t k = count.load(std::memory_order_relaxed);
    in_turn(producer, k).freed = static_cast<std::uint32_t>(batch);
    count.store(k + 1, std::memory_order_seq_cst);
  }
  std::uint64_t memory_of(int batch, std::size_t array) const noexcept {
    return header().memory + header().batch_bytes * static_cast<std::uint64_t>(batch) + header().arrays[array].offset;
  }

 private:
  BatchSlot& in_turn(int producer, std::uint64_t k) const noexcept {
    return batch(first_batch(producer) + static_cast<int>(k % static_cast<std::uint64_t>(batches_of(producer))));
  }
  static constexpr std::size_t align(std::size_t bytes) noexcept {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static constexpr std::size_t producers_at() noexcept { return align(sizeof(QueueHeader)); }
  static constexpr std::size_t batches_at(int producers) noexcept {
    return align(producers_at() + sizeof(ProducerSlot) * static_cast<std::size_t>(producers));
  }
  std::byte* base_ = nullptr;
};

}  // namespace syncrun::detail::protocol

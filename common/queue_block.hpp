#pragma once

// Where the producers of a queue and its consumer meet: in the session's segment, which stays readable whoever dies.
//
//   header | one slot per producer | one slot per batch
//
// Every producer has batches of its own, which nobody else fills, so that none takes the place that another one needs for
// its turn. One batch:
//
//   free --its producer--> being filled --push--> pushed --the consumer, in the order pushed--> taken --last handle--> free
//
// Who writes what: the master writes the header, `closes` and, when a batch is free again, `is_free`; a producer all else.

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/control_block.hpp"
#include "common/wait.hpp"
#include "syncrun/detail/batch.hpp"

namespace syncrun::detail {

enum class ProducerState : std::uint32_t { starting, running, ended, failed };

struct alignas(128) ProducerSlot {
  std::atomic<std::uint64_t> pushed;  // batches; polled by the master
  std::atomic<ProducerState> state;   // written after the last `pushed`
  std::atomic<bool> waits;            // for a batch to be free; read when something went wrong

  alignas(64) pthread_mutex_t life;  // robust; held by a thread of the producer as long as it lives
  ErrorKind error_kind;              // ProducerState::failed: what it threw
  std::int32_t native_code;
  std::array<char, kMessageBytes> message;
};

struct alignas(64) BatchSlot {
  std::atomic<bool> is_free;
  /// Which batch was pushed as the producer's k-th: in the slot of its k % count-th batch. It can have `count` of them out
  /// at most, so nothing that is not yet taken is overwritten.
  std::uint32_t pushed;
  std::array<std::int64_t, kMaxBatchArrays> rows;
};

struct BatchArray {
  BatchArrayType type;
  std::array<std::int64_t, kMaxDimensions> extents;  // at most
  std::uint64_t offset;                              // in the batch's memory
  std::uint64_t bytes;
};

struct QueueHeader {
  std::int32_t producers;
  std::int32_t capacity;
  std::uint32_t arrays_count;
  std::array<BatchArray, kMaxBatchArrays> arrays;
  std::uint64_t memory;  // offset of the first batch's in the segment
  std::uint64_t batch_bytes;

  alignas(64) std::atomic<bool> closes;  // producers are to end
  Doorbell to_producers;                 // is_free, closes
};

/// Finds the parts of a queue at `base`. The layout follows from the numbers in the header.
class QueueBlock {
 public:
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
  /// The batches of a producer: [first, end). As evenly as possible, earlier ones have one more.
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
  std::uint64_t memory_of(int batch, std::size_t array) const noexcept {
    return header().memory + header().batch_bytes * static_cast<std::uint64_t>(batch) + header().arrays[array].offset;
  }

 private:
  static constexpr std::size_t align(std::size_t bytes) noexcept { return (bytes + 127) / 128 * 128; }
  static constexpr std::size_t producers_at() noexcept { return align(sizeof(QueueHeader)); }
  static constexpr std::size_t batches_at(int producers) noexcept {
    return align(producers_at() + sizeof(ProducerSlot) * static_cast<std::size_t>(producers));
  }
  std::byte* base_ = nullptr;
};

}  // namespace syncrun::detail

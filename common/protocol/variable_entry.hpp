#pragma once

// Descriptions of shared variables, which the workers read.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/protocol/command.hpp"
#include "syncrun/detail/call.hpp"

namespace syncrun::detail {

/// A rank's copy of a shared variable, or of a Value. The worker of this rank writes it, outside calls that use the
/// variable. A rank that copies from it reads it. The master resets it when it replaces the worker.
struct VariableCopy {
  std::uint64_t place;     // the place in the memory of the rank's device (WorkerDevice::place_of)
  std::uint64_t exported;  // for the devices of peers: see WorkerDevice::export_memory
  std::uint64_t capacity_bytes;
  std::array<std::int64_t, kMaxDimensions> extents;
  /// Whether the worker may free the copy when its device runs out of memory; see SpareCopy. Accessed with atomic_ref.
  std::uint64_t spare;
};

/// The state of VariableCopy::spare. Only copies of Values are spare: the value is valid elsewhere, or this copy is not
/// valid any more.
///
///   needed --mark (master)--> spare from command k on --claim (master)--> needed
///                                '--drop (worker, once it is done with command k)--> dropped --claim--> needed
class SpareCopy {
 public:
  explicit SpareCopy(VariableCopy& copy) noexcept : state_(copy.spare) {}

  /// The master: the worker may drop the copy once it is done with the command `last_use`.
  void mark(std::uint64_t last_use) noexcept {
    std::uint64_t known = state_.load(std::memory_order_relaxed);
    while (known != kDropped && !state_.compare_exchange_weak(known, last_use + 1, std::memory_order_release)) {
    }
  }
  /// The master: the copy is needed from now on. Returns false if the worker has dropped it.
  bool claim() noexcept { return state_.exchange(kNeeded, std::memory_order_acq_rel) != kDropped; }
  /// The worker, which runs the command `current`: whether the copy may be freed now. If true, it no longer exists.
  bool drop(std::uint64_t current) noexcept {
    std::uint64_t known = state_.load(std::memory_order_acquire);
    const bool is_spare = known != kNeeded && known != kDropped && known <= current;
    return is_spare && state_.compare_exchange_strong(known, kDropped, std::memory_order_acq_rel);
  }
  bool was_dropped() const noexcept { return state_.load(std::memory_order_acquire) == kDropped; }
  bool is_spare() const noexcept {
    const std::uint64_t known = state_.load(std::memory_order_acquire);
    return known != kNeeded && known != kDropped;
  }

 private:
  static constexpr std::uint64_t kNeeded = 0;
  static constexpr std::uint64_t kDropped = ~std::uint64_t{0};
  std::atomic_ref<std::uint64_t> state_;
};

/// A shared variable, as the master describes it for the workers. It is in the master's heap. One VariableCopy per rank
/// follows it.
struct VariableEntry {
  std::uint64_t id;
  DType dtype;
  std::uint8_t dimensions;
  std::uint64_t next_freed;  // offset of the next VariableEntry that the same command frees, or 0 (see FreePayload)
  VariableCopy* copies() noexcept { return reinterpret_cast<VariableCopy*>(this + 1); }
  static constexpr std::size_t bytes(int world_size) noexcept {
    return sizeof(VariableEntry) + sizeof(VariableCopy) * static_cast<std::size_t>(world_size);
  }
};

}  // namespace syncrun::detail

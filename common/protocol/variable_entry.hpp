#pragma once

// Descriptions of shared variables, which the workers read.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/protocol/command.hpp"
#include "syncrun/detail/call.hpp"

namespace syncrun::detail::protocol {

/// A rank's copy of a shared variable, or of a Value. The worker of this rank writes it, outside calls that use the
/// variable. A rank that copies from it reads it. The master resets it when it replaces the worker.
struct VariableCopy {
  std::uint64_t place;     // the place in the memory of the rank's device (DeviceMemory::place_of)
  std::uint64_t exported;  // for the devices of peers: see PeerAccess::export_memory
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
///
/// All other ranks copy from the home of a Value. The worker of the home may drop its copy only if another copy takes its
/// place. It first makes this one needed (appoint). The master finds out when it next claims the copy of the home.
class SpareCopy {
 public:
  /// What the copy is besides spare.
  enum class Role : std::uint64_t {
    none = 0,
    successor = std::uint64_t{1} << 62U,  // valid and complete, so it can take the place of the home
    home = std::uint64_t{1} << 63U,       // may be dropped only if there is a successor
  };

  explicit SpareCopy(VariableCopy& copy) noexcept : state_(copy.spare) {}

  /// The master: the worker may drop the copy once it is done with the command `last_use`. Returns false if the worker has
  /// dropped it already. For the copy of the home, `last_use` is higher each time: a worker that has appointed a
  /// successor must see that the copy was claimed since, although it is marked again. By then, the successor may be
  /// spare again too.
  bool mark(std::uint64_t last_use, Role role) noexcept {
    const std::uint64_t marked = (last_use + 1) | static_cast<std::uint64_t>(role);
    std::uint64_t known = state_.load(std::memory_order_relaxed);
    while (known != kDropped) {
      if (known == marked) return true;
      if (state_.compare_exchange_weak(known, marked, std::memory_order_release)) return true;
    }
    return false;
  }
  /// The master: the copy is needed from now on. Returns false if the worker has dropped it.
  bool claim() noexcept {
    if (state_.load(std::memory_order_acquire) == kNeeded) return true;  // only the master changes this
    return state_.exchange(kNeeded, std::memory_order_acq_rel) != kDropped;
  }
  /// The worker, which runs the command `current`: whether the copy may be freed now. If true, it no longer exists.
  /// `appoint()` is called if the copy is the home. It returns whether a successor is needed from now on.
  template <class Appoint>
  bool drop(std::uint64_t current, Appoint&& appoint) noexcept {
    std::uint64_t known = state_.load(std::memory_order_acquire);
    if (known == kNeeded || known == kDropped || command_of(known) > current) return false;
    if (has(known, Role::home) && !appoint()) return false;
    return state_.compare_exchange_strong(known, kDropped, std::memory_order_acq_rel);
  }
  /// The worker of the home: this copy takes its place if true, and is needed from now on. It stays needed if the home is
  /// not dropped after all, until the master marks it again.
  bool appoint() noexcept {
    std::uint64_t known = state_.load(std::memory_order_acquire);
    const bool can_follow = known != kDropped && has(known, Role::successor);
    return can_follow && state_.compare_exchange_strong(known, kNeeded, std::memory_order_acq_rel);
  }
  bool was_dropped() const noexcept { return state_.load(std::memory_order_acquire) == kDropped; }
  bool is_spare() const noexcept {
    const std::uint64_t known = state_.load(std::memory_order_acquire);
    return known != kNeeded && known != kDropped;
  }

 private:
  static constexpr std::uint64_t kNeeded = 0;
  static constexpr std::uint64_t kDropped = ~std::uint64_t{0};
  static constexpr bool has(std::uint64_t state, Role role) noexcept {
    return (state & static_cast<std::uint64_t>(role)) != 0;
  }
  static constexpr std::uint64_t command_of(std::uint64_t state) noexcept {
    return state & ~(static_cast<std::uint64_t>(Role::successor) | static_cast<std::uint64_t>(Role::home));
  }
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

/// The worker of this rank, which runs the command `current`: whether it may free its copy now. If true, the copy no
/// longer exists.
inline bool drop_copy(VariableEntry& entry, int world_size, int rank, std::uint64_t current) noexcept {
  const auto appoint = [&] {
    for (int other = 0; other < world_size; ++other) {
      if (other != rank && SpareCopy(entry.copies()[other]).appoint()) return true;
    }
    return false;
  };
  return SpareCopy(entry.copies()[rank]).drop(current, appoint);
}

}  // namespace syncrun::detail::protocol

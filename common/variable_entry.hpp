#pragma once

// Shared variables as the workers find them.

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/command.hpp"
#include "syncrun/detail/call.hpp"

namespace syncrun::detail {

/// A rank's copy of a shared variable. Written by its worker only, outside calls that use it.
struct VariableCopy {
  std::uint64_t place;  // as the rank's device names its memory (Device::place_of); of no use to others
  std::uint64_t capacity_bytes;
  std::array<std::int64_t, kMaxDimensions> extents;
};

/// A shared variable as the workers find it; in the master's heap, followed by one VariableCopy and one TransferSlot per
/// rank (of the transfer that frees it: giving memory back must not need any).
struct VariableEntry {
  std::uint64_t id;
  DType dtype;
  std::uint8_t dimensions;
  bool is_freed;
  VariableCopy* copies() noexcept { return reinterpret_cast<VariableCopy*>(this + 1); }
  TransferSlot* last_transfer(int world_size) noexcept {
    return reinterpret_cast<TransferSlot*>(copies() + world_size);
  }
  static constexpr std::size_t bytes(int world_size) noexcept {
    return sizeof(VariableEntry) + (sizeof(VariableCopy) + sizeof(TransferSlot)) * static_cast<std::size_t>(world_size);
  }
};

}  // namespace syncrun::detail

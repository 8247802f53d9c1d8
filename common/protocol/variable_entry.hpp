#pragma once

// Descriptions of shared variables, which the workers read.

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/protocol/command.hpp"
#include "syncrun/detail/call.hpp"

namespace syncrun::detail {

/// A rank's copy of a shared variable. The worker of this rank writes it, outside calls that use the variable. The
/// master resets it when it replaces the worker.
struct VariableCopy {
  std::uint64_t
      place;  // the place in the memory of the rank's device (WorkerDevice::place_of); only this rank can use it
  std::uint64_t capacity_bytes;
  std::array<std::int64_t, kMaxDimensions> extents;
};

/// A shared variable, as the master describes it for the workers. It is in the master's heap. One VariableCopy and one
/// TransferSlot per rank follow it. The slots are for the transfer that frees the variable, so that freeing memory does
/// not require any.
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

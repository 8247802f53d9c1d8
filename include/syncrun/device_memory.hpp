#pragma once

// DeviceMemory: what lies in the memory of a device. Session::memory returns it.

#include <cstddef>
#include <string>
#include <vector>

namespace syncrun {

struct ArrayInMemory;

/// The memory of a device. On a CPU device, this is the memory of the machine, which all CPU devices share.
struct DeviceMemory {
  std::size_t total_bytes = 0;  ///< The size of the device's memory.
  /// What the session can still allocate, without the copies that can be dropped.
  std::size_t free_bytes = 0;
  /// The copies on the device, the largest first.
  std::vector<ArrayInMemory> arrays;
};

/// The copy of a shared variable or of a Value on a device.
struct ArrayInMemory {
  std::string name;       ///< The name of the variable or of the value in messages.
  std::size_t bytes = 0;  ///< The size of the copy.
  bool is_value = false;  ///< False for a shared variable.
  /// True if the worker may free the copy when its memory runs out, because the value is valid elsewhere.
  bool can_be_dropped = false;
};

}  // namespace syncrun

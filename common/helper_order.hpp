#pragma once

// What a helper process is to do: a process of its own that runs one function, as a producer of a queue or as a task. The
// order lies in an anonymous file that the helper inherits; the bytes of the function's arguments follow it there.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/control_block.hpp"
#include "common/file_descriptor.hpp"
#include "common/function_entry.hpp"

namespace syncrun::detail {

enum class HelperKind : std::uint8_t { producer, task };

struct HelperOrder {
  std::uint64_t magic;
  HelperKind kind;
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;  // of the master's image
  BodyEntry body;
  std::array<char, 128> name;
  std::uint64_t queue;  // producer: offset of the QueueHeader in the segment
  std::uint64_t seed;   // producer
  std::uint64_t arguments_bytes;
};

/// Writes it, this program's build id included, into a file without a name. Throws Error (system).
FileDescriptor write_order(HelperOrder order, std::span<const std::byte> arguments);

struct ReceivedOrder {
  HelperOrder order;
  std::vector<std::byte> arguments;
};
/// Reads it; several processes may read the same file. Throws Error (system).
ReceivedOrder read_order(const FileDescriptor& file);

}  // namespace syncrun::detail

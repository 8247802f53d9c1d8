#pragma once

// The description of a helper process: a process that runs one function, as a producer of a queue or as a task. The
// helper inherits an anonymous file with this description. The bytes of the function's arguments follow it there.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/function_entry.hpp"

namespace syncrun::detail::protocol {

enum class HelperKind : std::uint8_t { producer, task };

struct HelperSpec {
  std::uint64_t magic;
  HelperKind kind;
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;  // of the master's image
  BodyEntry body;
  std::array<char, 128> name;
  std::uint64_t queue;    // producer: offset of the QueueHeader in the segment
  std::uint64_t seed;     // producer
  bool is_on_every_node;  // producer: each node has one with the same index
  std::uint64_t arguments_bytes;
};

/// Writes the spec and the arguments into a file without a name. Sets magic, build id and arguments_bytes itself. The
/// master calls it. Throws Error (system).
os::FileDescriptor write_spec(HelperSpec spec, std::span<const std::byte> arguments);

struct ReceivedSpec {
  HelperSpec spec;
  std::vector<std::byte> arguments;
};
/// Reads the spec and the arguments. Several helpers may read the same file. Throws Error (system).
ReceivedSpec read_spec(const os::FileDescriptor& file);

}  // namespace syncrun::detail::protocol

#pragma once

// What ranks say about a command once it is over.

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/phase.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {

inline constexpr std::size_t kMessageBytes = 2048;

/// How a rank's function ended, in the low byte of its vote word beside the command.
enum class Vote : std::uint8_t { none, ok, failed };
constexpr std::uint64_t vote_word(std::uint64_t command, Vote vote) noexcept {
  return (command << 8U) | static_cast<std::uint64_t>(vote);
}

struct OutputSlot {
  std::uint64_t offset;
  std::array<std::int64_t, kMaxDimensions> extents;
  alignas(8) std::array<std::byte, 8> scalar;
};

/// What one rank has to say about one command. Valid when its vote is in.
struct alignas(64) Outbox {
  Vote vote;
  bool is_empty;    // had no rows: contributes nothing
  bool is_fatal;    // failed so that the worker's device cannot be used any more
  bool is_large;    // some outputs are large enough to be reduced among the workers
  bool is_reduced;  // outputs were reduced among the workers: rank order's first holds the result
  ErrorKind error_kind;
  std::int32_t native_code;
  std::int64_t rows;
  std::uint64_t collective_steps;  // taken in this command; valid once the rank has left its collectives
  std::int64_t failed_ns;          // when it failed: the first failure is the one reported
  Phase failed_phase;
  std::array<OutputSlot, kMaxOutputs> outputs;
  std::array<char, kMessageBytes> message;
};

}  // namespace syncrun::detail

#pragma once

// What the ranks report about a command when it has ended.

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/protocol/phase.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::protocol {

inline constexpr std::size_t kMessageBytes = 2048;

/// How a rank's function ended. The vote word has it in the low byte, and the number of the command above it.
enum class Vote : std::uint8_t { none, ok, failed };
constexpr std::uint64_t vote_word(std::uint64_t command, Vote vote) noexcept {
  return (command << 8U) | static_cast<std::uint64_t>(vote);
}

struct OutputSlot {
  std::uint64_t offset;
  std::array<std::int64_t, kMaxDimensions> extents;
  alignas(8) std::array<std::byte, 8> scalar;
};

/// What one rank reports about one command. Valid when the rank has voted or has finished the command.
struct alignas(64) Outbox {
  /// Whether the rank has not begun the update of a train step, and never will.
  bool is_before_update() const noexcept { return vote == Vote::failed && !may_have_updated; }
  bool has_reduced(std::size_t output) const noexcept { return (reduced_outputs >> output & 1U) != 0; }

  Vote vote;  // how the command has ended on the rank
  /// The vote that the rank has cast. A failure after the vote does not change it, because peers may read it until they
  /// are done with the command.
  Vote cast;
  bool is_empty;          // the rank had no rows, so it contributes nothing
  bool is_fatal;          // after this failure, the worker cannot use its device any more
  bool may_have_updated;  // before this failure, the rank may have begun the update of a train step
  bool is_large;          // some outputs are so large that the workers reduce them
  /// One bit per output that the workers of this rank's node have reduced. The first of them that has this output holds
  /// the result.
  std::uint16_t reduced_outputs;
  static_assert(kMaxOutputs <= 16);
  ErrorKind error_kind;
  std::int32_t native_code;
  std::int64_t rows;
  double weight;                   // of the rank in averages: the number of its rows, or what the body has set
  std::uint64_t collective_steps;  // taken in this command; valid once the rank has left its collectives
  std::uint64_t exchanges;         // with other nodes that this rank has begun as a leader; valid as the steps are
  std::int64_t failed_ns;          // when the rank failed; the master reports the first failure
  Phase failed_phase;
  std::array<OutputSlot, kMaxOutputs> outputs;
  std::array<char, kMessageBytes> message;
  /// For a measured call: how long the rank has worked on its rows, without the collectives of the body. Valid if the
  /// rank has not failed.
  std::int64_t own_ns;
};

}  // namespace syncrun::detail::protocol

#pragma once

// What a worker is doing, and for which command: its progress word.

#include <cstdint>
#include <string_view>

namespace syncrun::detail {

/// What a worker is doing. Kept in the low byte of its progress word, beside the command it is doing it for. Command 0
/// is starting up.
enum class Phase : std::uint8_t {
  spawn,         // from fork until it has the segment, and can say where it is
  attach,        // becoming one of the session
  device,        // initialising its device
  communicator,  // making a communicator with its peers (GPUs)
  inputs,        // taking its rows
  function,      // in the user's code
  collective,    // in a collective, called by the user's code or by the master
  vote,          // waiting for its peers to return
  reduction,     // reducing outputs, committing updates
  close,         // ending
  idle,          // waiting for the next command
};

std::string_view to_string(Phase phase) noexcept;

constexpr std::uint64_t progress_word(std::uint64_t command, Phase phase) noexcept {
  return (command << 8U) | static_cast<std::uint64_t>(phase);
}
constexpr std::uint64_t command_of(std::uint64_t progress) noexcept { return progress >> 8U; }
constexpr Phase phase_of(std::uint64_t progress) noexcept { return static_cast<Phase>(progress & 0xffU); }

}  // namespace syncrun::detail

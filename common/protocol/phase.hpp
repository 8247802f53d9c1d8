#pragma once

// The progress of a worker: which command it runs, and which phase of it the worker has reached.

#include <cstdint>
#include <string_view>

namespace syncrun::detail::protocol {

/// What a worker is doing. The progress word of the worker has the phase in the low byte, and the number of the command
/// above it. Command 0 is the start of the worker.
enum class Phase : std::uint8_t {
  spawn,         // from the fork until it has mapped the segment and can write its progress
  attach,        // attaching to the session
  device,        // initialising its device
  dependencies,  // waiting until other ranks are done with earlier commands
  communicator,  // making a communicator with its peers (GPUs)
  inputs,        // reading its rows
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

}  // namespace syncrun::detail::protocol

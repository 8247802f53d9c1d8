#pragma once

// The master's view of the inbox of one rank: which command was last in each of its places.

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/protocol/command.hpp"

namespace syncrun::detail::master::calls {

class InboxPlaces {
 public:
  /// How many commands the rank has got so far.
  std::uint64_t received() const noexcept { return received_; }
  /// The command that was last in the place that the next command gets. 0 if none was.
  std::uint64_t last_in_next_place() const noexcept { return commands_[received_ % protocol::kInboxSize]; }
  /// Returns the place of the command. The command that was there before has been collected.
  std::size_t add(std::uint64_t command) noexcept {
    const std::size_t place = received_++ % protocol::kInboxSize;
    commands_[place] = command;
    return place;
  }

  /// The last command that was collected while its outputs are in the rank's memory, and the rank does not know yet that
  /// they were consumed. 0 if there is none.
  std::uint64_t unconsumed = 0;

 private:
  std::uint64_t received_ = 0;
  std::array<std::uint64_t, protocol::kInboxSize> commands_{};
};

}  // namespace syncrun::detail::master::calls

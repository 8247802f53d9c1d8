#pragma once

// The master's view of the inbox of one rank: which commands take its places.

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/protocol/command.hpp"

namespace syncrun::detail {

/// Commands enter in their order. Places are freed in this order too, whatever order the commands are collected in.
class InboxQueue {
 public:
  /// How many commands have entered so far.
  std::uint64_t pushed() const noexcept { return pushed_; }
  bool is_full() const noexcept { return pushed_ - popped_ == kInboxSize; }
  bool is_empty() const noexcept { return pushed_ == popped_; }
  /// The command that has been here for the longest time. The queue must not be empty.
  std::uint64_t front() const noexcept { return commands_[popped_ % kInboxSize]; }
  /// Returns the place of the command. The queue must not be full.
  std::size_t push(std::uint64_t command) noexcept {
    const std::size_t place = pushed_++ % kInboxSize;
    commands_[place] = command;
    return place;
  }
  void pop() noexcept { last_popped_ = commands_[popped_++ % kInboxSize]; }
  void pop_all() noexcept { popped_ = pushed_; }
  /// The last command that has left, or 0.
  std::uint64_t last_popped() const noexcept { return last_popped_; }

  /// A command that is in the queue has outputs in the memory of the rank. The rank frees them when it learns that the
  /// command has left.
  void note_outputs() noexcept { has_outputs_ = true; }
  bool has_outputs() const noexcept { return has_outputs_; }
  void forget_outputs() noexcept { has_outputs_ = false; }

 private:
  std::uint64_t pushed_ = 0;
  std::uint64_t popped_ = 0;
  std::uint64_t last_popped_ = 0;
  bool has_outputs_ = false;
  std::array<std::uint64_t, kInboxSize> commands_{};
};

}  // namespace syncrun::detail

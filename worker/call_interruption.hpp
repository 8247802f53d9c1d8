#pragma once

// What interrupts a worker's waits in a command: the loss of a worker, and the command's failure on another rank.

#include "worker/attachment.hpp"
#include "worker/interruption.hpp"

namespace syncrun::detail {

class CallInterruption final : public Interruption {
 public:
  explicit CallInterruption(const Attachment& attachment) noexcept : attachment_(attachment) {}

  /// From here on waits are those of `command`. A failure of its is of no interest where this rank does not need its peers.
  void begin(const Command& command, bool needs_peers) noexcept {
    command_ = &command;
    needs_peers_ = needs_peers;
  }
  bool needs_peers() const noexcept { return needs_peers_; }
  /// The command does, after all: from its vote on.
  void note_that_peers_are_needed() noexcept { needs_peers_ = true; }

  bool is_set() const noexcept override;
  /// Throws SessionLost, and notes when; or Abandoned.
  [[noreturn]] void raise() const override;

 private:
  bool is_lost() const noexcept;

  const Attachment& attachment_;
  const Command* command_ = nullptr;  // null before the first
  bool needs_peers_ = false;
};

/// Throws SessionLost, and notes when this rank stopped waiting.
[[noreturn]] void raise_session_lost(const Attachment& attachment);

}  // namespace syncrun::detail

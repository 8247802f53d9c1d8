#pragma once

// Interrupts a worker's waits in a command if a worker is lost, or if the command fails on another rank.

#include <cstdint>

#include "worker/comm/left_memory.hpp"
#include "worker/process/attachment.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::comm {

class CallInterruption final : public process::Interruption {
 public:
  /// Whether this rank needs its peers to come through the command.
  enum class Peers : std::uint8_t { not_needed, needed };

  /// `memory`, if there is one, is told when a wait ends early.
  explicit CallInterruption(const process::Attachment& attachment, LeftMemory* memory = nullptr) noexcept
      : attachment_(attachment), memory_(memory) {}

  /// From here on, waits belong to `command`. If the peers are not needed, a failure of the command on another rank does
  /// not interrupt them.
  void begin(const protocol::Command& command, Peers peers) noexcept {
    command_ = &command;
    needs_peers_ = peers == Peers::needed;
  }
  bool needs_peers() const noexcept { return needs_peers_; }
  /// From here on, the command needs its peers. Called after its vote, if outputs are reduced among the workers.
  void note_that_peers_are_needed() noexcept { needs_peers_ = true; }

  /// While it lives, nothing interrupts waits if lost workers are replaced. For the commit of updates, which waits only for
  /// this rank's own device: the peers commit whatever happens to this rank.
  class Pause {
   public:
    explicit Pause(CallInterruption& of) noexcept : of_(of) {
      of_.is_paused_ = of_.attachment_.control.header().respawns;
    }
    ~Pause() { of_.is_paused_ = false; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    CallInterruption& of_;
  };

  bool is_set() const noexcept override;
  /// If a worker is lost, records the time and throws SessionLost. Otherwise throws Abandoned.
  [[noreturn]] void raise() const override;

 private:
  bool is_lost() const noexcept;

  const process::Attachment& attachment_;
  LeftMemory* memory_;
  const protocol::Command* command_ = nullptr;  // null before the first
  bool needs_peers_ = false;
  bool is_paused_ = false;
};

/// Records when this rank stopped waiting, and throws SessionLost.
[[noreturn]] void raise_session_lost(const process::Attachment& attachment);

}  // namespace syncrun::detail::worker::comm

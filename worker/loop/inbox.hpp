#pragma once

// The commands of this rank, in the order in which the master has published them, and what must be true before one runs:
// the ranks that it needs are there, commands before it are done and have not failed, and values have come.

#include <cstdint>
#include <optional>

#include "worker/devices/device.hpp"
#include "worker/process/attachment.hpp"

namespace syncrun::detail::worker::loop {

class Inbox {
 public:
  /// Both arguments outlive this object.
  Inbox(const process::Attachment& attachment, devices::WorkerDevice& device) noexcept;

  /// The next command becomes the current one. Returns null once the session is over.
  protocol::Command* await_command();
  /// The number of the current command. While this rank waits for the next one, that of the last one.
  std::uint64_t current() const noexcept { return current_; }
  /// The outbox of this rank for the current command.
  protocol::Outbox& outbox() const noexcept {
    return attachment_.control.outbox_at(attachment_.rank, (received_ - 1) % protocol::kInboxSize);
  }
  /// The place of the command after the current one. It still has the entry of an older command if the master has not
  /// published that command yet.
  const std::atomic<std::uint64_t>& next() const noexcept {
    return attachment_.control.inbox(attachment_.rank, received_ % protocol::kInboxSize);
  }

  // These also accept commands that are not the current one yet.
  bool has_lost_a_rank(const protocol::Command& command) const noexcept;
  bool depends_on_a_failure(const protocol::Command& command) const noexcept;
  bool are_earlier_done(const protocol::Command& command) const noexcept;
  std::optional<int> source_on_other_node(const protocol::Command& command) const noexcept;

  /// Waits for what the current command needs. Throws SessionLost if a rank for which it waits was lost.
  void await_needs_of(const protocol::Command& command) {
    if (command.dependencies_count != 0) await_earlier(command);
    if (command.kind == protocol::CommandKind::move) await_values(command);
  }

 private:
  void await_earlier(const protocol::Command& command);
  void await_values(const protocol::Command& command);
  template <class Ready>
  void await_others(Ready&& ready, const protocol::WorkerSlot& other);
  bool is_over(const protocol::Dependency& earlier) const noexcept;
  /// Whether workers were replaced that the device has not forgotten yet.
  bool has_new_peers() const noexcept { return header_.replacements.load(std::memory_order_seq_cst) != replacements_; }

  const process::Attachment& attachment_;
  protocol::ControlHeader& header_;
  devices::WorkerDevice& device_;
  os::WaitPolicy policy_;
  std::uint64_t replacements_;  // of workers, as far as the device knows
  std::uint64_t received_;      // how many commands this rank has got
  std::uint64_t current_;
};

}  // namespace syncrun::detail::worker::loop

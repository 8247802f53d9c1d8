#include "worker/comm/call_interruption.hpp"

#include <algorithm>

#include "common/os/waited_time.hpp"

namespace syncrun::detail::worker::comm {

/// If lost workers are replaced, a loss concerns only the commands of the lost ranks.
bool CallInterruption::is_lost() const noexcept {
  const protocol::ControlHeader& header = attachment_.control.header();
  if (header.lost.load(std::memory_order_seq_cst) == 0) return false;
  if (!header.respawns || command_ == nullptr) return true;
  return std::any_of(command_->ranks.begin(), command_->ranks.end(), [this](int rank) {
    return attachment_.control.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0;
  });
}

bool CallInterruption::is_set() const noexcept {
  if (is_paused_) return false;
  if (is_lost()) return true;
  return needs_peers_ && command_ != nullptr && command_->failed.load(std::memory_order_seq_cst) == command_->id;
}

void CallInterruption::raise() const {
  if (memory_ != nullptr && command_ != nullptr) memory_->keep(*command_);
  if (is_lost()) raise_session_lost(attachment_);
  throw process::Abandoned();
}

void raise_session_lost(const process::Attachment& attachment) {
  attachment.slot().released_ns.store(os::Clock::now().time_since_epoch().count(), std::memory_order_release);
  throw process::SessionLost();
}

}  // namespace syncrun::detail::worker::comm

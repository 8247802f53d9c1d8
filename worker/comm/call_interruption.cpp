#include "worker/comm/call_interruption.hpp"

#include "common/os/waited_time.hpp"

namespace syncrun::detail {

bool CallInterruption::is_lost() const noexcept {
  return attachment_.control.header().lost.load(std::memory_order_seq_cst) != 0;
}

bool CallInterruption::is_set() const noexcept {
  if (is_lost()) return true;
  return needs_peers_ && command_ != nullptr && command_->failed.load(std::memory_order_seq_cst) == command_->id;
}

void CallInterruption::raise() const {
  if (is_lost()) raise_session_lost(attachment_);
  throw Abandoned();
}

void raise_session_lost(const Attachment& attachment) {
  attachment.slot().released_ns.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
  throw SessionLost();
}

}  // namespace syncrun::detail

#include "master/records/session_state.hpp"

#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::records {

void SessionState::throw_not_open() const {
  if (!is_here()) text::throw_usage("this process was forked from the session's, and the workers are not its own");
  if (cause_) text::throw_usage(std::string("the session is over: ") + cause_->what());
  text::throw_usage("the session was closed");
}

bool SessionState::enter_after_release() noexcept {
  for (User user = User::release; user != User::call;) {
    // In a fork of the program, no thread will leave. check_open() then refuses the call.
    if (user == User::release && !is_here()) return true;
    if (user == User::release) user_.wait(User::release, std::memory_order_acquire);
    user = User::nobody;
    if (user_.compare_exchange_strong(user, User::call, std::memory_order_acquire)) return true;
  }
  return false;
}

}  // namespace syncrun::detail::master::records

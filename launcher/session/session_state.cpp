#include "launcher/session/session_state.hpp"

#include <string>

#include "common/text/errors.hpp"

namespace syncrun::detail {

void SessionState::throw_not_open() const {
  if (!is_here()) throw_usage("this process was forked from the session's, and the workers are not its own");
  if (cause_) throw_usage(std::string("the session is over: ") + cause_->what());
  throw_usage("the session was closed");
}

}  // namespace syncrun::detail

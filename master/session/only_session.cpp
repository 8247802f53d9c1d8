#include "master/session/only_session.hpp"

#include <atomic>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::session {

namespace {

std::atomic_flag has_session;

}  // namespace

OnlySession::OnlySession() {
  if (has_session.test_and_set()) text::throw_usage("there is a live session in this process already: close it first");
}

void OnlySession::release() noexcept {
  if (std::exchange(is_held_, false)) has_session.clear();
}

}  // namespace syncrun::detail::master::session

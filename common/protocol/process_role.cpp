#include "common/protocol/process_role.hpp"

#include <atomic>
#include <limits>
#include <optional>

#include "common/os/environment.hpp"
#include "syncrun/run.hpp"

namespace syncrun::detail::protocol {

namespace {
// Atomic, because threads that bodies have started may read it too.
std::atomic<bool> is_worker = false;
constinit AgentRoleFunction agent_role = nullptr;
}  // namespace

bool is_in_worker() noexcept { return is_worker.load(std::memory_order_relaxed); }
void become_worker() noexcept { is_worker.store(true, std::memory_order_relaxed); }

void set_agent_role(AgentRoleFunction function) noexcept { agent_role = function; }
std::optional<int> serve_if_agent() { return agent_role == nullptr ? std::nullopt : agent_role(); }

}  // namespace syncrun::detail::protocol

namespace syncrun {

int restarts() noexcept {
  const char* text = detail::environment::get(detail::environment::kRestart);
  const auto restarts = text == nullptr ? std::nullopt : detail::environment::whole_number(text);
  return restarts && *restarts > 0 && *restarts <= std::numeric_limits<int>::max() ? static_cast<int>(*restarts) : 0;
}

}  // namespace syncrun

// These tests link no launcher, so no process of theirs is an agent.

#include "syncrun/detail/master_seam.hpp"

namespace syncrun::detail {

std::optional<int> serve_if_agent() { return std::nullopt; }

}  // namespace syncrun::detail

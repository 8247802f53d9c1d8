#include "common/protocol/phase_hook.hpp"

namespace syncrun::detail {

const PhaseHook* phase_hook_of(int /*rank*/) { return nullptr; }

}  // namespace syncrun::detail

#include "common/control_block.hpp"

#include <type_traits>

namespace syncrun::detail {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics in shared memory must be lock-free");
static_assert(std::is_trivially_copyable_v<ArgumentSlot> && std::is_trivially_copyable_v<OutputSlot> &&
              std::is_trivially_copyable_v<FunctionEntry> && std::is_trivially_copyable_v<VariableCopy>);

std::string_view to_string(Phase phase) noexcept {
  switch (phase) {
    case Phase::spawn: return "spawn";
    case Phase::attach: return "attach";
    case Phase::device: return "device";
    case Phase::communicator: return "communicator";
    case Phase::inputs: return "inputs";
    case Phase::function: return "function";
    case Phase::collective: return "collective";
    case Phase::vote: return "vote";
    case Phase::reduction: return "reduction";
    case Phase::close: return "close";
    case Phase::idle: return "idle";
  }
  return "spawn";
}

}  // namespace syncrun::detail

#include "common/protocol/control_block.hpp"

#include <type_traits>

#include "common/protocol/function_entry.hpp"
#include "common/protocol/variable_entry.hpp"

namespace syncrun::detail::protocol {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics in shared memory must be lock-free");
static_assert(std::is_trivially_copyable_v<ArgumentSlot> && std::is_trivially_copyable_v<OutputSlot> &&
              std::is_trivially_copyable_v<FunctionEntry> && std::is_trivially_copyable_v<VariableCopy> &&
              std::is_trivially_copyable_v<CommandHeader> && std::is_trivially_copyable_v<Command::Payload>);

}  // namespace syncrun::detail::protocol

#pragma once

// Describes a body so that other processes of the same image can find it, and chooses its name.

#include <string>
#include <string_view>

#include "common/protocol/control_block.hpp"
#include "common/protocol/function_entry.hpp"

namespace syncrun::detail::master::calls {

/// Throws Error (usage) if the body is in no loaded image.
protocol::BodyEntry describe_body(const void* thunk, const BodyPointer& pointer);

/// Returns `given` unless it is empty. Otherwise returns the function's own name if symbols tell it, and `otherwise` if
/// not.
std::string choose_name(std::string_view given, const BodyPointer& pointer, std::string_view otherwise);

}  // namespace syncrun::detail::master::calls

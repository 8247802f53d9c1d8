#pragma once

// A body as other processes of the same image find it again, and what it is called.

#include <string>
#include <string_view>

#include "common/control_block.hpp"
#include "common/function_entry.hpp"

namespace syncrun::detail {

/// Throws Error (usage) if it lies in no loaded image.
BodyEntry describe_body(const void* thunk, const BodyPointer& pointer);

/// The name that was given; else the function's own, as far as symbols tell; else `otherwise`.
std::string choose_name(std::string_view given, const BodyPointer& pointer, std::string_view otherwise);

}  // namespace syncrun::detail

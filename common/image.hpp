#pragma once

// Finding a function again in another process: by its place in the image it was loaded from. Addresses differ from
// process to process; the build id of an image and the offset in it do not.

#include <string>

#include "common/control_block.hpp"
#include "common/function_entry.hpp"

namespace syncrun::detail {

/// Where `address` lies. Throws Error (usage) if it lies in no loaded image.
ImageAddress locate(const void* address);

/// The address that `place` has in this process. An image that is not loaded yet (a plug-in) is loaded from its path.
/// Throws Error (system) if there is none with that build id.
void* resolve(const ImageAddress& place);

/// The function that a body's thunk calls, as this process has it. Throws as resolve does.
BodyPointer resolve_pointer(const BodyEntry& body);

/// The build id of this program; no bytes if it was linked without.
ImageAddress program_image();

/// "build id 3f2a…" or "no build id", for messages.
std::string describe_build_id(const ImageAddress& image);

}  // namespace syncrun::detail

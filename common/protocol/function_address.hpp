#pragma once

// Finds a function in another process. The address of a function may differ from process to process. The build id of
// its image and the offset in the image are the same in every process.

#include <string>

#include "common/protocol/control_block.hpp"
#include "common/protocol/function_entry.hpp"

namespace syncrun::detail::protocol {

/// The image and the offset of `address`. Throws Error (usage) if no loaded image contains it.
ImageAddress locate(const void* address);

/// The address of `place` in this process. If the image (a plug-in) is not loaded yet, loads it from its path. Throws
/// Error (system) if there is no image with this build id.
void* resolve(const ImageAddress& place);

/// The pointer in this process to the function that the thunk of a body calls. Throws the same errors as resolve.
BodyPointer resolve_pointer(const BodyEntry& body);

/// The image of this program: its path and build id, with offset 0. The build id has 0 bytes if the program was linked
/// without one.
ImageAddress program_image();

/// The first bytes of the build id for messages, for example "build id 3f2a…", or "no build id".
std::string describe_build_id(const ImageAddress& image);

}  // namespace syncrun::detail::protocol

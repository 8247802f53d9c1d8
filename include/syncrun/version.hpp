#pragma once

// SYNCRUN_VERSION_MAJOR, SYNCRUN_VERSION_MINOR and SYNCRUN_VERSION_PATCH are the version of this header. version() returns
// the version of the library that the program uses.

#include "syncrun/detail/export.hpp"

#define SYNCRUN_VERSION_MAJOR 0
#define SYNCRUN_VERSION_MINOR 1
#define SYNCRUN_VERSION_PATCH 0

namespace syncrun {
/// The version of the library, such as "0.1.0".
SYNCRUN_EXPORT const char* version() noexcept;
}  // namespace syncrun

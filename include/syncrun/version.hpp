#pragma once

// The version this header belongs to; version() is that of the library in use.

#include "syncrun/detail/export.hpp"

#define SYNCRUN_VERSION_MAJOR 0
#define SYNCRUN_VERSION_MINOR 1
#define SYNCRUN_VERSION_PATCH 0

namespace syncrun {
/// "0.1.0".
SYNCRUN_EXPORT const char* version() noexcept;
}  // namespace syncrun

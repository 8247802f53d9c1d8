#pragma once

// The versions of parts. A part is a library that was built with Syncrun, and that Syncrun loads by the name of its file.

#include <dlfcn.h>

#include <string>
#include <string_view>

namespace syncrun::detail::os {

/// Why a part cannot be used with this library: it has another version. Empty if it has the same. `version` is that of the
/// part, or null if the part has no version.
inline std::string why_part_does_not_fit(std::string_view file, const char* version) {
  if (version != nullptr && std::string_view(version) == SYNCRUN_VERSION) return {};
  return std::string(file) + " is of " + (version == nullptr ? "another Syncrun" : std::string("Syncrun ") + version) +
         ", and the program uses Syncrun " SYNCRUN_VERSION ": expected the same version. Install both from one build";
}

/// The same for a part that is loaded. One of its sources has SYNCRUN_PART_VERSION.
inline std::string why_part_does_not_fit(std::string_view file, void* part) {
  using Version = const char* (*)();
  const auto version = reinterpret_cast<Version>(::dlsym(part, "syncrun_part_version"));
  return why_part_does_not_fit(file, version == nullptr ? nullptr : version());
}

}  // namespace syncrun::detail::os

/// Defines the function that tells the version of a part.
#define SYNCRUN_PART_VERSION \
  extern "C" [[gnu::visibility("default")]] const char* syncrun_part_version() { return SYNCRUN_VERSION; }

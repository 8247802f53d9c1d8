#pragma once

// Checks a folder before anything is started that writes in it.

#include <optional>
#include <string>

namespace syncrun::detail::os {

/// Why no file can be written in the folder, for a message: "is full: No space left on device". Empty if one can. Creates
/// a file without a name to find out. Refuses the link of another user, who may have placed it in a folder for everyone,
/// such as /tmp.
std::optional<std::string> why_not_writable(const std::string& folder);

}  // namespace syncrun::detail::os

#pragma once

// Finds the file of a program as a shell does.

#include <string>

namespace syncrun::detail::os {

struct FoundExecutable {
  std::string path;  ///< Of the program, or of a file of this name that cannot be executed. Empty if PATH has neither.
  int error = 0;     ///< 0, or the errno with which executing the file would fail.
};

/// Searches PATH, unless the name contains a slash.
FoundExecutable find_executable(const std::string& name);

}  // namespace syncrun::detail::os

#pragma once

// The libraries that this process has loaded, and their versions.

#include <link.h>

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::detail::os {

/// The paths of all loaded libraries whose file names begin with `name`.
inline std::vector<std::string> loaded_libraries(std::string_view name) {
  struct Search {
    std::string_view name;
    std::vector<std::string> paths;
  } search{name, {}};
  const auto add = [](dl_phdr_info* info, std::size_t, void* to) {
    auto& search = *static_cast<Search*>(to);
    const std::string_view path(info->dlpi_name);
    if (path.substr(path.rfind('/') + 1).starts_with(search.name)) search.paths.emplace_back(path);
    return 0;
  };
  ::dl_iterate_phdr(add, &search);
  return search.paths;
}

struct LibraryVersion {
  long major = 0;
  long minor = 0;
  long patch = 0;

  friend auto operator<=>(const LibraryVersion&, const LibraryVersion&) = default;
  std::string text() const { return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch); }
  /// From the number that NCCL 2.9 and later and cuDNN 9 use: 22809 is 2.28.9 and 91400 is 9.14.0.
  static LibraryVersion of_number(long number) { return {number / 10000, number / 100 % 100, number % 100}; }
};

/// Throws Error (usage) unless `user`, which was built with a library of the version `expected`, can use the version that
/// the process has loaded: one of the same major version that is not older. `file` is the name of the library's file.
inline void require_version(std::string_view name, std::string_view file, const LibraryVersion& loaded,
                            std::string_view user, const LibraryVersion& expected) {
  if (loaded.major == expected.major && loaded >= expected) return;
  const auto paths = loaded_libraries(file);
  throw Error(ErrorKind::usage, "the process has loaded " + std::string(name) + " " + loaded.text() +
                                    (paths.empty() ? "" : " (" + paths.front() + ")") + ", and " + std::string(user) +
                                    " was built with " + expected.text() +
                                    ", expected the same major version and not an older one. Put the folder of the one "
                                    "that it was built with into LD_LIBRARY_PATH, or build with the one that is there");
}

}  // namespace syncrun::detail::os

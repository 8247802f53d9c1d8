#pragma once

// The libraries that this process has loaded.

#include <link.h>

#include <string>
#include <string_view>
#include <vector>

namespace syncrun::libtorch::detail {

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

}  // namespace syncrun::libtorch::detail

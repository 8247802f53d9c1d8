#include <link.h>
#include <torch/torch.h>

#include <string>
#include <string_view>
#include <vector>

#include "syncrun/error.hpp"
#include "syncrun/torch/torch_seam.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// The paths of all loaded copies of LibTorch.
std::vector<std::string> loaded_copies() {
  std::vector<std::string> paths;
  const auto add = [](dl_phdr_info* info, std::size_t, void* to) {
    const std::string_view path(info->dlpi_name);
    if (path.substr(path.rfind('/') + 1).starts_with("libtorch_cpu.so"))
      static_cast<std::vector<std::string>*>(to)->emplace_back(path);
    return 0;
  };
  ::dl_iterate_phdr(add, &paths);
  return paths;
}

}  // namespace

void check_versions(int major, int minor) {
  if (major != TORCH_VERSION_MAJOR || minor < TORCH_VERSION_MINOR) {
    throw Error(ErrorKind::usage,
                "the program was compiled with LibTorch " + std::to_string(major) + "." + std::to_string(minor) +
                    ", and Syncrun with " TORCH_VERSION
                    ", expected the same major version and not an older minor one. Build both with the same LibTorch");
  }
  const auto copies = loaded_copies();
  if (copies.size() > 1) {
    throw Error(ErrorKind::usage, "the process has loaded two copies of LibTorch: " + copies[0] + " and " + copies[1] +
                                      ", expected one. Link the program and its libraries with the same LibTorch");
  }
}

}  // namespace syncrun::libtorch::detail

// Which GPUs this build and this machine have. Tests of sessions with fake GPUs link other functions instead.

#include <dirent.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "master/devices/devices.hpp"

namespace syncrun::detail::master::devices {

bool cuda_is_built() noexcept {
#ifdef SYNCRUN_HAVE_CUDA
  return true;
#else
  return false;
#endif
}

int visible_gpus() {
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> directory(::opendir("/dev"), close);
  int physical = 0;
  while (directory) {
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name.starts_with("nvidia") && parse_index(name.substr(6))) ++physical;
  }
  return count_visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), physical);
}

}  // namespace syncrun::detail::master::devices

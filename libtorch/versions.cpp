#include <torch/torch.h>

#include <string>

#include "common/os/libraries.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

void check_versions(int major, int minor) {
  if (major != TORCH_VERSION_MAJOR || minor < TORCH_VERSION_MINOR) {
    throw Error(ErrorKind::usage,
                "the program was compiled with LibTorch " + std::to_string(major) + "." + std::to_string(minor) +
                    ", and Syncrun with " TORCH_VERSION
                    ", expected the same major version and not an older minor one. Build both with the same LibTorch");
  }
  const auto copies = syncrun::detail::os::loaded_libraries("libtorch_cpu.so");
  if (copies.size() > 1) {
    throw Error(ErrorKind::usage, "the process has loaded two copies of LibTorch: " + copies[0] + " and " + copies[1] +
                                      ", expected one. Link the program and its libraries with the same LibTorch");
  }
}

}  // namespace syncrun::libtorch::detail

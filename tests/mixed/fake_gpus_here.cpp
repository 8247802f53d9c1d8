// As if this library were built with CUDA, on a machine with GPUs.

#include "master/devices/devices.hpp"

namespace syncrun::detail::master::devices {

bool cuda_is_built() noexcept { return true; }
int visible_gpus() { return 2; }

}  // namespace syncrun::detail::master::devices

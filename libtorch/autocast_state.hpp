#pragma once

// The state of autocast in this thread, by functions that all versions of LibTorch have.

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace syncrun::libtorch::detail {

// LibTorch 2.4 has other names for these functions, and later versions warn of the former ones.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
/// Whether autocast on CPUs can have the type float16.
inline constexpr bool kHasFloat16OnCpus = true;
inline bool is_autocast_enabled(::torch::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
inline ::torch::ScalarType autocast_type(::torch::DeviceType device) {
  return at::autocast::get_autocast_dtype(device);
}
inline void set_autocast(::torch::DeviceType device, bool enabled, ::torch::ScalarType type) {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
}
#else
inline constexpr bool kHasFloat16OnCpus = false;
inline bool is_autocast_enabled(::torch::DeviceType device) {
  return device == ::torch::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
inline ::torch::ScalarType autocast_type(::torch::DeviceType device) {
  return device == ::torch::kCPU ? at::autocast::get_autocast_cpu_dtype() : at::autocast::get_autocast_gpu_dtype();
}
inline void set_autocast(::torch::DeviceType device, bool enabled, ::torch::ScalarType type) {
  if (device == ::torch::kCPU) {
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(type);
  } else {
    at::autocast::set_enabled(enabled);
    at::autocast::set_autocast_gpu_dtype(type);
  }
}
#endif

}  // namespace syncrun::libtorch::detail

#include "syncrun/torch/autocast.hpp"

#include <ATen/autocast_mode.h>

#include <string>

#include "libtorch/autocast_state.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_seam.hpp"

namespace syncrun::libtorch {

// LibTorch 2.4 has other names for these functions, and later versions warn of the former ones.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
bool detail::is_autocast_enabled(::torch::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
::torch::ScalarType detail::autocast_type(::torch::DeviceType device) {
  return at::autocast::get_autocast_dtype(device);
}
#else
bool detail::is_autocast_enabled(::torch::DeviceType device) {
  return device == ::torch::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
::torch::ScalarType detail::autocast_type(::torch::DeviceType device) {
  return device == ::torch::kCPU ? at::autocast::get_autocast_cpu_dtype() : at::autocast::get_autocast_gpu_dtype();
}
#endif

namespace {

void set_autocast(::torch::DeviceType device, bool enabled, ::torch::ScalarType type) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
#else
  if (device == ::torch::kCPU) {
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(type);
  } else {
    at::autocast::set_enabled(enabled);
    at::autocast::set_autocast_gpu_dtype(type);
  }
#endif
}

/// Throws Error (usage) unless LibTorch has this type for autocast. LibTorch itself would only warn.
::torch::ScalarType checked_type(::torch::ScalarType type) {
  if (type != ::torch::kBFloat16 && type != ::torch::kFloat32) {
    throw Error(ErrorKind::usage,
                std::string("Autocast: expected torch::kBFloat16, or torch::kFloat32 for none, got ") +
                    c10::toString(type) + ". Other types are not supported");
  }
  return type;
}

}  // namespace

Autocast::Autocast(::torch::ScalarType type)
    : device_(detail::device_here().type()),
      was_enabled_(detail::is_autocast_enabled(device_)),
      type_before_(detail::autocast_type(device_)) {
  const bool is_lower = checked_type(type) != ::torch::kFloat32;
  set_autocast(device_, is_lower, is_lower ? type : type_before_);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // Copies would be of parameters that the next step has changed.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(device_, was_enabled_, type_before_);
}

}  // namespace syncrun::libtorch

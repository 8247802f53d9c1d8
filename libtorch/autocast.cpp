#include "syncrun/torch/autocast.hpp"

#include <string>

#include "libtorch/autocast_state.hpp"
#include "libtorch/converted_parameters.hpp"
#include "libtorch/step_scope.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch {

namespace {

/// Throws Error (usage) unless LibTorch has this type for autocast on the device. LibTorch itself would only warn, or fail in
/// the first operation that it lacks.
::torch::ScalarType checked_type(::torch::ScalarType type, ::torch::DeviceType device) {
  if (type == ::torch::kBFloat16 || type == ::torch::kFloat32) return type;
  if (type != ::torch::kFloat16) {
    throw Error(ErrorKind::usage,
                std::string("Autocast: expected torch::kBFloat16, torch::kFloat16, or torch::kFloat32 for none, got ") +
                    c10::toString(type) + ". Other types are not supported");
  }
  if (device == ::torch::kCPU && !detail::kHasFloat16OnCpus) {
    throw Error(ErrorKind::usage,
                "Autocast: LibTorch " TORCH_VERSION
                " does not compute in float16 on CPUs, expected LibTorch 2.4 or later. Use torch::kBFloat16 there");
  }
  if (detail::loss_scale() == detail::LossScale::none && ::torch::GradMode::is_enabled()) {
    throw Error(ErrorKind::usage,
                "Autocast: the loss of this step is not scaled, so small gradients become 0 in float16. Make the step "
                "with scaled_step(session, net, params), or use torch::kBFloat16");
  }
  return type;
}

}  // namespace

Autocast::Autocast(::torch::ScalarType type)
    : device_(detail::device_here().type()),
      was_enabled_(detail::is_autocast_enabled(device_)),
      type_before_(detail::autocast_type(device_)) {
  const bool is_lower = checked_type(type, device_) != ::torch::kFloat32;
  detail::set_autocast(device_, is_lower, is_lower ? type : type_before_);
  at::autocast::increment_nesting();
  detail::ConvertedParameters::of_thread().begin();
}

Autocast::~Autocast() {
  // Copies would be of parameters that the next step has changed.
  detail::ConvertedParameters::of_thread().end();
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  detail::set_autocast(device_, was_enabled_, type_before_);
}

}  // namespace syncrun::libtorch

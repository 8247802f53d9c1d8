#include "libtorch/converted_parameters.hpp"

#include <ATen/autocast_mode.h>

namespace syncrun::libtorch::detail {

ConvertedParameters& ConvertedParameters::of_thread() {
  static thread_local ConvertedParameters converted;
  return converted;
}

void ConvertedParameters::bind(std::span<const float> parameters) {
  all_.reset();
  if (parameters.data() == parameters_.data() && parameters.size() == parameters_.size()) return;
  parameters_ = parameters;
  are_most_read_ = false;
  forget();
}

void ConvertedParameters::end() noexcept {
  if (--depth_ != 0) return;
  all_.reset();
  are_most_read_ = elements_read_ != 0 && 2 * elements_read_ >= std::ssize(parameters_);
  forget();
}

void ConvertedParameters::forget() noexcept {
  read_.clear();
  elements_read_ = 0;
}

std::int64_t ConvertedParameters::offset_of(const ::torch::Tensor& tensor, ::torch::ScalarType type) const {
  constexpr std::int64_t kAlignment = 16;  // bytes; cuBLAS reads as many at once
  if (tensor.scalar_type() != ::torch::kFloat32 || tensor.layout() != ::torch::kStrided || tensor.numel() == 0)
    return -1;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto* const first = static_cast<const float*>(tensor.data_ptr());
  const auto* const begin = parameters_.data();
  if (begin == nullptr || first < begin || first + last >= begin + parameters_.size()) return -1;
  const std::int64_t offset = first - begin;
  return offset * static_cast<std::int64_t>(c10::elementSize(type)) % kAlignment == 0 ? offset : -1;
}

::torch::Tensor ConvertedParameters::get(const ::torch::Tensor& tensor, ::torch::ScalarType type) {
  if (tensor.scalar_type() == type) return tensor.detach();
  const std::int64_t offset = depth_ == 0 ? -1 : offset_of(tensor, type);
  if (offset >= 0 && read_.insert(offset).second) elements_read_ += tensor.numel();
  if (offset < 0 || !are_most_read_ || (all_.defined() && all_.scalar_type() != type)) {
    // LibTorch keeps one converted copy of a parameter for a scope of autocast, with a gradient for its own functions.
    return at::autocast::cached_cast(type, tensor, tensor.device().type()).detach();
  }
  if (!all_.defined()) {
    // LibTorch has no tensors that are const.
    auto* const memory = const_cast<float*>(parameters_.data());
    all_ = ::torch::from_blob(memory, {std::ssize(parameters_)}, tensor.options().requires_grad(false)).to(type);
  }
  return all_.as_strided(tensor.sizes(), tensor.strides(), offset);
}

}  // namespace syncrun::libtorch::detail

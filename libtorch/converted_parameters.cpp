#include "libtorch/converted_parameters.hpp"

#include <ATen/autocast_mode.h>

#include <algorithm>

namespace syncrun::libtorch::detail {

ConvertedParameters& ConvertedParameters::of_thread() {
  static thread_local ConvertedParameters converted;
  return converted;
}

void ConvertedParameters::bind(const std::vector<BoundParameter>& parameters, std::span<const float> memory) noexcept {
  all_.reset();
  parameters_ = &parameters;
  memory_ = memory;
}

void ConvertedParameters::unbind() noexcept {
  all_.reset();
  parameters_ = nullptr;
  memory_ = {};
}

void ConvertedParameters::end() noexcept {
  if (--depth_ == 0) all_.reset();
}

::torch::Tensor ConvertedParameters::get(const ::torch::Tensor& tensor, ::torch::ScalarType type) {
  if (tensor.scalar_type() == type) return tensor.detach();
  auto part = part_of_all(tensor, type);
  if (part.defined()) return part;
  // LibTorch keeps one converted copy of a parameter for a scope of autocast, with a gradient for its own functions.
  return at::autocast::cached_cast(type, tensor, tensor.device().type()).detach();
}

::torch::Tensor ConvertedParameters::part_of_all(const ::torch::Tensor& tensor, ::torch::ScalarType type) {
  constexpr std::int64_t kAlignment = 16;  // bytes; cuBLAS reads as many at once
  if (depth_ == 0 || parameters_ == nullptr || memory_.size() > kMostElements) return {};
  if (tensor.scalar_type() != ::torch::kFloat32 || tensor.layout() != ::torch::kStrided || tensor.numel() == 0)
    return {};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto* const first = static_cast<const float*>(tensor.data_ptr());
  if (first < memory_.data() || first + last >= memory_.data() + memory_.size()) return {};
  const std::int64_t offset = first - memory_.data();
  if (offset * static_cast<std::int64_t>(c10::elementSize(type)) % kAlignment != 0) return {};

  if (!all_.defined()) convert(tensor.options(), type);
  const auto next = std::upper_bound(parameters_->begin(), parameters_->end(), offset,
                                     [](std::int64_t at, const BoundParameter& each) { return at < each.offset; });
  const auto index = static_cast<std::size_t>(next - parameters_->begin()) - 1;
  const bool has_changed = versions_[index] != (*parameters_)[index].tensor._version();
  if (has_changed || all_.scalar_type() != type) return {};
  return all_.as_strided(tensor.sizes(), tensor.strides(), offset);
}

void ConvertedParameters::convert(const ::torch::TensorOptions& options, ::torch::ScalarType type) {
  // LibTorch has no tensors that are const.
  auto* const memory = const_cast<float*>(memory_.data());
  all_ = ::torch::from_blob(memory, {std::ssize(memory_)}, options.requires_grad(false)).to(type);
  versions_.clear();
  for (const BoundParameter& each : *parameters_) versions_.push_back(each.tensor._version());
}

}  // namespace syncrun::libtorch::detail

#include "libtorch/module_tensors.hpp"

#include <algorithm>
#include <unordered_map>

#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// Collects tensors, and joins the names of those that are one tensor.
class TensorList {
 public:
  void add(const std::string& name, const ::torch::Tensor& tensor) {
    if (!tensor.defined()) return;  // for example the running mean of a BatchNorm that tracks none
    const auto [place, is_new] = places_.try_emplace(tensor.unsafeGetTensorImpl(), tensors_.size());
    if (is_new) tensors_.push_back({{}, tensor});
    auto& names = tensors_[place->second].names;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::vector<ModuleTensor> take() { return std::move(tensors_); }

 private:
  std::vector<ModuleTensor> tensors_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places_;
};

/// The strides of a tensor of this shape whose elements lie in memory in the order of their indices.
std::vector<std::int64_t> strides_in_order(const ::torch::Tensor& tensor) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
  for (std::size_t i = strides.size(); i > 1; --i)
    strides[i - 2] = strides[i - 1] * std::max<std::int64_t>(tensor.size(static_cast<std::int64_t>(i - 1)), 1);
  return strides;
}

/// Its own strides if its elements fill its memory, such as those of a tensor that is channels last.
std::vector<std::int64_t> strides_in_variable(const ::torch::Tensor& tensor) {
  const bool fills_its_memory = tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
  return fills_its_memory ? tensor.strides().vec() : strides_in_order(tensor);
}

enum class Kept { others, all };

std::vector<ModuleTensor> collect(const ::torch::nn::Module& module, Kept kept) {
  TensorList list;
  for (const auto& named : module.named_parameters()) {
    if (kept == Kept::all || !named.value().requires_grad()) list.add(named.key(), named.value());
  }
  for (const auto& named : module.named_buffers()) list.add(named.key(), named.value());
  return list.take();
}

}  // namespace

std::vector<BoundParameter> trained_parameters(const ::torch::nn::Module& module) {
  TensorList list;
  for (const auto& named : module.named_parameters()) {
    if (named.value().defined() && named.value().requires_grad()) list.add(named.key(), named.value());
  }
  std::vector<BoundParameter> parameters;
  std::int64_t offset = 0;
  for (ModuleTensor& each : list.take()) {
    const std::int64_t elements = each.tensor.numel();
    auto strides = strides_in_variable(each.tensor);
    auto sizes = each.tensor.sizes().vec();
    parameters.push_back(
        {std::move(each.names.front()), std::move(each.tensor), offset, std::move(strides), std::move(sizes)});
    offset += elements;
  }
  return parameters;
}

std::vector<ModuleTensor> other_tensors(const ::torch::nn::Module& module) { return collect(module, Kept::others); }
std::vector<ModuleTensor> all_tensors(const ::torch::nn::Module& module) { return collect(module, Kept::all); }

bool is_part_of(const FlatVector& vector, const BoundParameter& parameter, const ::torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.scalar_type() != vector.type) return false;
  const auto at = static_cast<std::size_t>(parameter.offset - vector.first) * c10::elementSize(vector.type);
  return tensor.numel() == 0 || tensor.data_ptr() == static_cast<std::byte*>(vector.data) + at;
}

::torch::Tensor numbers_at(void* data, ::torch::IntArrayRef sizes, ::torch::ScalarType type) {
  return ::torch::from_blob(data, sizes, ::torch::TensorOptions().dtype(type).device(device_here()));
}
::torch::Tensor part_of(const FlatVector& vector, const BoundParameter& parameter) {
  const auto at = static_cast<std::size_t>(parameter.offset - vector.first) * c10::elementSize(vector.type);
  const ::torch::Tensor part =
      numbers_at(static_cast<std::byte*>(vector.data) + at, {parameter.tensor.numel()}, vector.type);
  return part.as_strided(parameter.tensor.sizes(), parameter.strides);
}

void check_type(const BoundParameter& parameter) {
  const ::torch::Tensor& tensor = parameter.tensor;
  const ::torch::Device device = device_here();
  if (!at::isFloatingType(tensor.scalar_type()) || tensor.layout() != ::torch::kStrided || tensor.device() != device) {
    throw Error(ErrorKind::usage,
                "parameter '" + parameter.name + "' is " + type_and_shape(tensor) + " on " + tensor.device().str() +
                    ", expected a dense tensor of floating-point numbers on " +
                    (device.is_cpu() ? "the CPU" : device.str()) +
                    ". Keep the parameters where they are, and convert values in forward or with autocast");
  }
}

void check_gradient_place(const BoundParameter& parameter, const FlatVector& gradient) {
  if (is_part_of(gradient, parameter, parameter.tensor.grad())) return;
  throw Error(ErrorKind::usage, "the gradient of parameter '" + parameter.name +
                                    "' was replaced during the backward pass, expected additions to "
                                    "it. Do not assign or reset .grad, for example by zero_grad(), in the loss or in a "
                                    "hook");
}

std::string type_and_shape(const ::torch::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

std::string memory_order(const BoundParameter& parameter) {
  if (parameter.strides == strides_in_order(parameter.tensor)) return "";
  std::string text = " with strides";
  for (const std::int64_t stride : parameter.strides) text.append(" ").append(std::to_string(stride));
  return text;
}

}  // namespace syncrun::libtorch::detail

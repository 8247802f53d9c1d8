#pragma once

// The tensors of a module: its parameters, and the tensors that training does not update.

#include <torch/torch.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

/// A tensor of a module, and all of its names. Tied tensors have several. The first name is the one that is saved.
struct ModuleTensor {
  std::vector<std::string> names;
  ::torch::Tensor tensor;
};

/// The parameters that require a gradient, in the order of named_parameters(). Each tensor occurs once.
std::vector<BoundParameter> trained_parameters(const ::torch::nn::Module& module);
/// The buffers and the frozen parameters.
std::vector<ModuleTensor> other_tensors(const ::torch::nn::Module& module);
/// All parameters and buffers.
std::vector<ModuleTensor> all_tensors(const ::torch::nn::Module& module);

/// True if the tensor is the part of `vector` that belongs to the parameter. Without elements, a tensor has no address.
bool is_part_of(const FlatVector& vector, const BoundParameter& parameter, const ::torch::Tensor& tensor);
/// Whether the values of a parameter are copies of those in the vector, in another type.
inline bool is_converted(const BoundParameter& parameter, const FlatVector& vector) {
  return parameter.tensor.scalar_type() != vector.type;
}
/// Numbers in memory of the device of the innermost Guard, without a copy.
::torch::Tensor numbers_at(void* data, ::torch::IntArrayRef sizes, ::torch::ScalarType type);
/// The part of `vector` that belongs to the parameter.
::torch::Tensor part_of(const FlatVector& vector, const BoundParameter& parameter);
/// Throws Error (usage) unless the parameter is a dense tensor of floating-point numbers on the device of the innermost Guard.
void check_type(const BoundParameter& parameter);
/// Throws Error (usage) unless the gradient of the parameter is its part of `gradient`.
void check_gradient_place(const BoundParameter& parameter, const FlatVector& gradient);

/// "Float [8, 4]".
std::string type_and_shape(const ::torch::Tensor& tensor);

/// The strides of a parameter whose elements do not lie in memory in the order of their indices, as text. Empty for others.
std::string memory_order(const BoundParameter& parameter);

/// The elements of a contiguous tensor, as elements of T.
template <class T>
std::span<T> elements_of(const ::torch::Tensor& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes()) / sizeof(T)};
}

/// Calls `use` with the elements of a contiguous floating-point tensor, for Comm. Returns false if the tensor has
/// another type.
template <class Use>
bool with_floating_elements(const ::torch::Tensor& tensor, Use&& use) {
  switch (tensor.scalar_type()) {
    case ::torch::kFloat32: use(elements_of<float>(tensor)); return true;
    case ::torch::kFloat64: use(elements_of<double>(tensor)); return true;
    case ::torch::kFloat16: use(elements_of<float16>(tensor)); return true;
    case ::torch::kBFloat16: use(elements_of<bfloat16>(tensor)); return true;
    default: return false;
  }
}

}  // namespace syncrun::libtorch::detail

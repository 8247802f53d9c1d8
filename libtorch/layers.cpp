#include "syncrun/torch/layers.hpp"

#include "libtorch/cuda_part.hpp"
#include "libtorch/layer_functions.hpp"

namespace syncrun::libtorch {

namespace {

/// Without gradients, LibTorch's products and embeddings are as fast.
bool wants_gradient(const ::torch::Tensor& tensor) {
  return ::torch::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

}  // namespace

::torch::Tensor linear(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias) {
  const bool has_gradients = wants_gradient(x) || wants_gradient(weight) || wants_gradient(bias);
  if (x.is_cuda() && has_gradients && detail::can_multiply(x, weight, bias))
    return detail::multiply(detail::cuda_part().operations(), x, weight, bias);
  return ::torch::linear(x, weight, bias);
}

::torch::Tensor layer_norm(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias,
                           double epsilon) {
  if (x.is_cuda() && detail::can_normalize(x, weight, bias))
    return detail::normalize(detail::cuda_part().operations(), x, weight, bias, epsilon);
  return ::torch::layer_norm(x, {x.size(-1)}, weight, bias, epsilon).to(detail::type_here(x));
}

SumAndNorm add_layer_norm(const ::torch::Tensor& x, const ::torch::Tensor& change, const ::torch::Tensor& weight,
                          const ::torch::Tensor& bias, double epsilon) {
  if (x.is_cuda() && detail::can_add(x, change) && detail::can_normalize(x, weight, bias))
    return detail::add_and_normalize(detail::cuda_part().operations(), {x, change}, weight, bias, epsilon);
  const auto sum = x + change;
  return {sum, layer_norm(sum, weight, bias, epsilon)};
}

::torch::Tensor embedding(const ::torch::Tensor& tokens, const ::torch::Tensor& table) {
  if (table.is_cuda() && wants_gradient(table) && detail::can_choose(tokens, table))
    return detail::choose(detail::cuda_part().operations(), tokens, table);
  return ::torch::embedding(table, tokens);
}

}  // namespace syncrun::libtorch

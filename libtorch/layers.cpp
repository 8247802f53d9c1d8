#include "syncrun/torch/layers.hpp"

#include <cstdint>
#include <string>

#include "libtorch/autocast_state.hpp"
#include "libtorch/cuda_part.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch {

namespace {

namespace autograd = ::torch::autograd;

/// Undefined tensors are no arguments of an autograd::Function.
using OptionalTensor = c10::optional<::torch::Tensor>;
OptionalTensor optional(const ::torch::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor();
}

bool has_kernels_for(::torch::ScalarType type) {
  return type == ::torch::kFloat32 || type == ::torch::kBFloat16 || type == ::torch::kFloat64;
}

/// The type of the sums of elements.
::torch::ScalarType type_of_sums(::torch::ScalarType type) {
  return type == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32;
}

/// The type in which an operation that Autocast converts computes with a tensor.
::torch::ScalarType type_here(const ::torch::Tensor& tensor) {
  const auto device = tensor.device().type();
  const bool is_converted = detail::is_autocast_enabled(device) && tensor.scalar_type() != ::torch::kFloat64;
  return is_converted ? detail::autocast_type(device) : tensor.scalar_type();
}

bool wants_gradient(const ::torch::Tensor& a, const ::torch::Tensor& b) {
  return ::torch::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
}

void refuse_second_derivative(std::string function) {
  if (!::torch::GradMode::is_enabled()) return;
  throw Error(ErrorKind::usage, function.append(": second derivatives are not supported (create_graph)"));
}

/// a * b, with elements of `type`.
::torch::Tensor product(const ::torch::Tensor& a, const ::torch::Tensor& b, ::torch::ScalarType type) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  if (type == ::torch::kFloat32 && a.scalar_type() == ::torch::kBFloat16) return at::mm(a, b, type);
#endif
  return at::mm(a, b).to(type);
}

::torch::Tensor as_matrix(const ::torch::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)}).contiguous();
}

/// With y = x * w^T + b: dx = dy * w, dw = dy^T * x, and db is the sum of the rows of dy.
class Linear : public autograd::Function<Linear> {
 public:
  static ::torch::Tensor forward(autograd::AutogradContext* context, const ::torch::Tensor& x,
                                 const ::torch::Tensor& weight, const OptionalTensor& bias) {
    const auto type = type_here(x);
    const auto own_x = x.to(type);
    const auto own_weight = weight.to(type);
    context->save_for_backward({own_x, own_weight});
    context->saved_data["type_of_x"] = static_cast<std::int64_t>(x.scalar_type());
    context->saved_data["type_of_weight"] = static_cast<std::int64_t>(weight.scalar_type());
    if (!bias) return at::linear(own_x, own_weight);
    context->saved_data["type_of_bias"] = static_cast<std::int64_t>(bias->scalar_type());
    return at::linear(own_x, own_weight, bias->to(type));
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    refuse_second_derivative("linear");
    autograd::variable_list results(3);
    if (!gradients[0].defined()) return results;
    const auto saved = context->get_saved_variables();
    const auto dy = as_matrix(gradients[0]);
    const auto type = [&](const char* name) {
      return static_cast<::torch::ScalarType>(context->saved_data[name].toInt());
    };
    if (context->needs_input_grad(0))
      results[0] = at::mm(dy, saved[1]).view(saved[0].sizes()).to(type("type_of_x"));
    if (context->needs_input_grad(1))
      results[1] = product(dy.t(), as_matrix(saved[0]), type("type_of_weight"));
    if (context->saved_data.count("type_of_bias") != 0 && context->needs_input_grad(2))
      results[2] = detail::cuda_part().operations().column_sums(dy).to(type("type_of_bias"));
    return results;
  }
};

class LayerNorm : public autograd::Function<LayerNorm> {
 public:
  static ::torch::Tensor forward(autograd::AutogradContext* context, const ::torch::Tensor& x,
                                 const OptionalTensor& weight, const OptionalTensor& bias, double epsilon) {
    const detail::NormalizationArguments arguments{x.contiguous(), contiguous_or_none(weight), contiguous_or_none(bias),
                                                   epsilon, type_here(x)};
    auto [y, means, scales] = detail::cuda_part().operations().layer_norm(arguments);
    context->save_for_backward({arguments.x, arguments.weight, means, scales});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["type_of_y"] = static_cast<std::int64_t>(arguments.type_of_y);
    return y;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    refuse_second_derivative("layer_norm");
    autograd::variable_list results(4);
    if (!gradients[0].defined()) return results;
    const auto saved = context->get_saved_variables();
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const detail::NormalizationArguments arguments{
        saved[0], saved[1], {}, context->saved_data["epsilon"].toDouble(),
        static_cast<::torch::ScalarType>(context->saved_data["type_of_y"].toInt())};
    auto [x, weights] = detail::cuda_part().operations().layer_norm_gradient(
        arguments, {{}, saved[2], saved[3]}, gradients[0].contiguous(), saved[1].defined() || has_bias);
    results[0] = x;
    if (saved[1].defined()) results[1] = weights[0];
    if (has_bias) results[2] = weights[1];
    return results;
  }

 private:
  static ::torch::Tensor contiguous_or_none(const OptionalTensor& tensor) {
    return tensor ? tensor->contiguous() : ::torch::Tensor();
  }
};

bool can_normalize(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias) {
  if (!x.is_cuda() || x.dim() == 0 || x.numel() == 0 || !has_kernels_for(x.scalar_type())) return false;
  const auto type = type_here(x);
  if (type != x.scalar_type() && type != ::torch::kBFloat16) return false;
  const auto fits = [&](const ::torch::Tensor& values) {
    return !values.defined() || (values.device() == x.device() && values.dim() == 1 && values.size(0) == x.size(-1) &&
                                 values.scalar_type() == type_of_sums(x.scalar_type()));
  };
  return fits(weight) && fits(bias);
}

class Embedding : public autograd::Function<Embedding> {
 public:
  static ::torch::Tensor forward(autograd::AutogradContext* context, const ::torch::Tensor& tokens,
                                 const ::torch::Tensor& table) {
    context->save_for_backward({tokens.contiguous()});
    context->saved_data["vocabulary"] = table.size(0);
    context->saved_data["type"] = static_cast<std::int64_t>(table.scalar_type());
    return at::embedding(table, tokens);
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    refuse_second_derivative("embedding");
    if (!gradients[0].defined()) return autograd::variable_list(2);
    const auto saved = context->get_saved_variables();
    return {{},
            detail::cuda_part()
                .operations()
                .embedding_gradient(saved[0], gradients[0].contiguous(), context->saved_data["vocabulary"].toInt())
                .to(static_cast<::torch::ScalarType>(context->saved_data["type"].toInt()))};
  }
};

}  // namespace

::torch::Tensor linear(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias) {
  const bool has_kernels = x.is_cuda() && x.dim() > 0 && x.numel() != 0 && weight.numel() != 0 &&
                           has_kernels_for(type_here(x)) && type_here(x) == type_here(weight);
  if (has_kernels && wants_gradient(x, weight)) return Linear::apply(x, weight, optional(bias));
  return ::torch::linear(x, weight, bias);
}

::torch::Tensor layer_norm(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias,
                           double epsilon) {
  if (can_normalize(x, weight, bias)) return LayerNorm::apply(x, optional(weight), optional(bias), epsilon);
  return ::torch::layer_norm(x, {x.size(-1)}, weight, bias, epsilon).to(type_here(x));
}

::torch::Tensor embedding(const ::torch::Tensor& tokens, const ::torch::Tensor& table) {
  constexpr std::int64_t kMostChecks = std::int64_t{1} << 24U;
  const bool has_kernel = table.is_cuda() && tokens.device() == table.device() && table.dim() == 2 &&
                          table.numel() != 0 && tokens.scalar_type() == ::torch::kInt64 && tokens.numel() != 0 &&
                          has_kernels_for(table.scalar_type()) && tokens.numel() <= kMostChecks / table.size(0);
  if (has_kernel && wants_gradient(table, table)) return Embedding::apply(tokens, table);
  return ::torch::embedding(table, tokens);
}

}  // namespace syncrun::libtorch

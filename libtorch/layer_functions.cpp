#include "libtorch/layer_functions.hpp"

#include <cstdint>
#include <string>

#include "libtorch/autocast_state.hpp"
#include "libtorch/converted_parameters.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

/// Undefined tensors are no arguments of an autograd::Function.
using OptionalTensor = c10::optional<::torch::Tensor>;
OptionalTensor optional(const ::torch::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor();
}

bool has_kernels_for(::torch::ScalarType type) {
  return type == ::torch::kFloat32 || type == ::torch::kBFloat16 || type == ::torch::kFloat64;
}

bool is_vector(const ::torch::Tensor& tensor, std::int64_t size, const ::torch::Tensor& beside) {
  return tensor.dim() == 1 && tensor.size(0) == size && tensor.device() == beside.device();
}

void keep(AutogradContext* context, const char* name, ::torch::ScalarType type) {
  context->saved_data[name] = static_cast<std::int64_t>(type);
}
::torch::ScalarType kept_type(AutogradContext* context, const char* name) {
  return static_cast<::torch::ScalarType>(context->saved_data[name].toInt());
}
/// A function keeps the address, because its backward pass has no other arguments.
void keep(AutogradContext* context, std::int64_t operations) { context->saved_data["operations"] = operations; }
GpuOperations& kept_operations(AutogradContext* context) {
  return *reinterpret_cast<GpuOperations*>(context->saved_data["operations"].toInt());
}
std::int64_t address_of(GpuOperations& operations) { return reinterpret_cast<std::int64_t>(&operations); }

void refuse_second_derivative(const char* function) {
  if (!::torch::GradMode::is_enabled()) return;
  std::string message = "lt::";
  message.append(function).append(": the backward pass has create_graph, but on a GPU this function has no second ");
  message.append("derivative. Use LibTorch's functions in its place");
  throw Error(ErrorKind::usage, message);
}

/// a * b, with elements of `type`.
::torch::Tensor product(const ::torch::Tensor& a, const ::torch::Tensor& b, ::torch::ScalarType type) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  if (a.is_cuda() && type == ::torch::kFloat32 && a.scalar_type() == ::torch::kBFloat16) return at::mm(a, b, type);
#endif
  return at::mm(a, b).to(type);
}

::torch::Tensor as_matrix(const ::torch::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}).contiguous(); }

/// With y = x * w^T + b: dx = dy * w, dw = dy^T * x, and db is the sum of the rows of dy.
class Linear : public ::torch::autograd::Function<Linear> {
 public:
  /// `own_weight` and `own_bias` are those in the type of the product, without a gradient.
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& x, const ::torch::Tensor& weight,
                                 const OptionalTensor& bias, const ::torch::Tensor& own_weight,
                                 const OptionalTensor& own_bias, std::int64_t operations) {
    const auto rows = as_matrix(x.to(own_weight.scalar_type()));
    keep(context, operations);
    keep(context, "type_of_x", x.scalar_type());
    keep(context, "type_of_weight", weight.scalar_type());
    if (bias) keep(context, "type_of_bias", bias->scalar_type());
    // Each is read for the gradient of the other one.
    context->save_for_backward(
        {weight.requires_grad() ? rows : ::torch::Tensor(), x.requires_grad() ? own_weight : ::torch::Tensor()});
    const auto y = own_bias ? at::addmm(*own_bias, rows, own_weight.t()) : at::mm(rows, own_weight.t());
    if (x.dim() == 2) return y;
    auto sizes = x.sizes().vec();
    sizes.back() = own_weight.size(0);
    // The result of a function that is a view could not be changed in place.
    return at::_unsafe_view(y, sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("linear");
    variable_list results(6);
    const auto saved = context->get_saved_variables();
    const auto dy = as_matrix(gradients[0]);
    const auto set_gradient_of_x = [&] {
      if (!context->needs_input_grad(0)) return;
      auto sizes = gradients[0].sizes().vec();
      sizes.back() = saved[1].size(1);
      results[0] = at::mm(dy, saved[1]).view(sizes).to(kept_type(context, "type_of_x"));
    };
    const auto set_gradient_of_weight = [&] {
      if (context->needs_input_grad(1)) results[1] = product(dy.t(), saved[0], kept_type(context, "type_of_weight"));
    };
    const auto set_gradient_of_bias = [&] {
      if (context->saved_data.count("type_of_bias") != 0 && context->needs_input_grad(2))
        results[2] = kept_operations(context).column_sums(dy).to(kept_type(context, "type_of_bias"));
    };
    kept_operations(context).side_by_side({set_gradient_of_x, set_gradient_of_weight, set_gradient_of_bias});
    return results;
  }
};

::torch::Tensor contiguous_or_undefined(const OptionalTensor& tensor) {
  return tensor ? tensor->contiguous() : ::torch::Tensor();
}

/// Normalizes, and keeps what the backward pass reads.
NormalizedRows normalize_and_keep(AutogradContext* context, const NormalizationArguments& arguments,
                                  std::int64_t operations) {
  keep(context, operations);
  keep(context, "type_of_y", arguments.type_of_y);
  context->saved_data["has_bias"] = arguments.bias.defined();
  auto rows = kept_operations(context).layer_norm(arguments);
  context->save_for_backward({rows.sum, arguments.weight, rows.means, rows.scales});
  return rows;
}

/// What normalize_and_keep() has kept.
struct KeptNormalization {
  explicit KeptNormalization(AutogradContext* context) {
    const auto saved = context->get_saved_variables();
    rows.sum = saved[0];
    arguments.weight = saved[1];
    arguments.type_of_y = kept_type(context, "type_of_y");
    rows.means = saved[2];
    rows.scales = saved[3];
  }
  /// Sets the gradients of weight and bias, where they are wanted. `first`: which argument the weight is.
  void set_weight_gradients(AutogradContext* context, const ::torch::Tensor& dy, std::size_t first,
                            variable_list& results) const {
    const bool has_weight = arguments.weight.defined();
    // LibTorch numbers only the arguments that are defined.
    const bool wants_weight = has_weight && context->needs_input_grad(first);
    const bool wants_bias =
        context->saved_data["has_bias"].toBool() && context->needs_input_grad(has_weight ? first + 1 : first);
    if (!wants_weight && !wants_bias) return;
    auto [of_weight, of_bias] = kept_operations(context).layer_norm_sums(arguments, rows, dy);
    if (wants_weight) results[first] = of_weight;
    if (wants_bias) results[first + 1] = of_bias;
  }

  NormalizationArguments arguments;
  NormalizedRows rows;
};

class LayerNorm : public ::torch::autograd::Function<LayerNorm> {
 public:
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& x, const OptionalTensor& weight,
                                 const OptionalTensor& bias, double epsilon, std::int64_t operations) {
    return normalize_and_keep(context,
                              {.x = x.contiguous(),
                               .change = {},
                               .weight = contiguous_or_undefined(weight),
                               .bias = contiguous_or_undefined(bias),
                               .epsilon = epsilon,
                               .type_of_y = type_here(x)},
                              operations)
        .y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("layer_norm");
    variable_list results(5);
    const KeptNormalization kept(context);
    const auto dy = gradients[0].contiguous();
    auto& operations = kept_operations(context);
    const auto set_gradient_of_x = [&] {
      if (!context->needs_input_grad(0)) return;
      results[0] =
          operations.layer_norm_gradient(kept.arguments, kept.rows, {dy, {}, kept.rows.sum.scalar_type()}).of_x;
    };
    operations.side_by_side({set_gradient_of_x, [&] { kept.set_weight_gradients(context, dy, 1, results); }});
    return results;
  }
};

/// Its results are the sum and the normalized sum.
class AddLayerNorm : public ::torch::autograd::Function<AddLayerNorm> {
 public:
  static variable_list forward(AutogradContext* context, const ::torch::Tensor& x, const ::torch::Tensor& change,
                               const OptionalTensor& weight, const OptionalTensor& bias, double epsilon,
                               std::int64_t operations) {
    // The sum of the last layer is not used. Its gradient is then undefined in place of zeros.
    context->set_materialize_grads(false);
    keep(context, "type_of_change", change.scalar_type());
    const auto rows = normalize_and_keep(context,
                                         {.x = x.contiguous(),
                                          .change = change.contiguous(),
                                          .weight = contiguous_or_undefined(weight),
                                          .bias = contiguous_or_undefined(bias),
                                          .epsilon = epsilon,
                                          .type_of_y = type_here(x)},
                                         operations);
    return {rows.sum, rows.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("add_layer_norm");
    variable_list results(6);
    const auto type_of_change = kept_type(context, "type_of_change");
    if (!gradients[1].defined()) {
      results[0] = gradients[0];
      if (gradients[0].defined()) results[1] = gradients[0].to(type_of_change);
      return results;
    }
    const KeptNormalization kept(context);
    const auto dy = gradients[1].contiguous();
    auto& operations = kept_operations(context);
    const auto set_gradients_of_summands = [&] {
      if (!context->needs_input_grad(0) && !context->needs_input_grad(1)) return;
      const auto of_sum = gradients[0].defined() ? gradients[0].contiguous() : ::torch::Tensor();
      auto [of_x, of_change] = operations.layer_norm_gradient(kept.arguments, kept.rows, {dy, of_sum, type_of_change});
      results[0] = of_x;
      results[1] = of_change;
    };
    operations.side_by_side({set_gradients_of_summands, [&] { kept.set_weight_gradients(context, dy, 2, results); }});
    return results;
  }
};

class Embedding : public ::torch::autograd::Function<Embedding> {
 public:
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& tokens, const ::torch::Tensor& table,
                                 std::int64_t operations) {
    keep(context, operations);
    keep(context, "type", table.scalar_type());
    context->saved_data["vocabulary"] = table.size(0);
    context->save_for_backward({tokens.contiguous()});
    return at::embedding(table, tokens);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("embedding");
    auto of_table = kept_operations(context).embedding_gradient(
        context->get_saved_variables()[0], gradients[0].contiguous(), context->saved_data["vocabulary"].toInt());
    return {{}, of_table.to(kept_type(context, "type")), {}};
  }
};

/// The type of the weights of a normalization of x in its kernels.
::torch::ScalarType weights_type(const ::torch::Tensor& x) {
  return x.scalar_type() == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32;
}

/// The conversion has a gradient.
OptionalTensor converted_weights(const ::torch::Tensor& values, const ::torch::Tensor& x) {
  return values.defined() ? OptionalTensor(values.to(weights_type(x))) : OptionalTensor();
}

}  // namespace

::torch::ScalarType type_here(const ::torch::Tensor& tensor) {
  const auto device = tensor.device().type();
  const bool is_converted =
      is_autocast_enabled(device) && tensor.is_floating_point() && tensor.scalar_type() != ::torch::kFloat64;
  return is_converted ? autocast_type(device) : tensor.scalar_type();
}

bool can_multiply(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias) {
  if (x.dim() == 0 || x.numel() == 0 || weight.dim() != 2 || weight.numel() == 0) return false;
  const auto type = type_here(x);
  if (!has_kernels_for(type) || type_here(weight) != type) return false;
  return !bias.defined() || (is_vector(bias, weight.size(0), x) && type_here(bias) == type);
}

bool can_normalize(const ::torch::Tensor& x, const ::torch::Tensor& weight, const ::torch::Tensor& bias) {
  if (x.dim() == 0 || x.numel() == 0 || !has_kernels_for(x.scalar_type())) return false;
  const auto type = type_here(x);
  if (type != x.scalar_type() && type != ::torch::kBFloat16) return false;
  const auto fits = [&](const ::torch::Tensor& values) {
    if (!values.defined()) return true;
    const auto own = values.scalar_type();
    return is_vector(values, x.size(-1), x) &&
           (own == weights_type(x) || (own == ::torch::kBFloat16 && x.scalar_type() != ::torch::kFloat64));
  };
  return fits(weight) && fits(bias);
}

bool can_add(const ::torch::Tensor& x, const ::torch::Tensor& change) {
  if (x.sizes() != change.sizes() || x.device() != change.device()) return false;
  return change.scalar_type() == x.scalar_type() ||
         (x.scalar_type() == ::torch::kFloat32 && change.scalar_type() == ::torch::kBFloat16);
}

bool can_choose(const ::torch::Tensor& tokens, const ::torch::Tensor& table) {
  constexpr std::int64_t kMostEntries = 8192;
  constexpr std::int64_t kMostChecks = std::int64_t{1} << 24U;  // of a token against an entry
  return tokens.device() == table.device() && table.dim() == 2 && table.numel() != 0 && tokens.numel() != 0 &&
         tokens.scalar_type() == ::torch::kInt64 && has_kernels_for(table.scalar_type()) &&
         table.size(0) <= kMostEntries && tokens.numel() <= kMostChecks / table.size(0);
}

::torch::Tensor multiply(GpuOperations& operations, const ::torch::Tensor& x, const ::torch::Tensor& weight,
                         const ::torch::Tensor& bias) {
  const auto type = type_here(weight);
  auto& parameters = ConvertedParameters::of_thread();
  const auto own_bias = bias.defined() ? OptionalTensor(parameters.get(bias, type)) : OptionalTensor();
  return Linear::apply(x, weight, optional(bias), parameters.get(weight, type), own_bias, address_of(operations));
}

::torch::Tensor normalize(GpuOperations& operations, const ::torch::Tensor& x, const ::torch::Tensor& weight,
                          const ::torch::Tensor& bias, double epsilon) {
  return LayerNorm::apply(x, converted_weights(weight, x), converted_weights(bias, x), epsilon, address_of(operations));
}

SumAndNorm add_and_normalize(GpuOperations& operations, const Summands& summands, const ::torch::Tensor& weight,
                             const ::torch::Tensor& bias, double epsilon) {
  const auto& [x, change] = summands;
  const auto results = AddLayerNorm::apply(x, change, converted_weights(weight, x), converted_weights(bias, x), epsilon,
                                           address_of(operations));
  return {results[0], results[1]};
}

::torch::Tensor choose(GpuOperations& operations, const ::torch::Tensor& tokens, const ::torch::Tensor& table) {
  return Embedding::apply(tokens, table, address_of(operations));
}

}  // namespace syncrun::libtorch::detail

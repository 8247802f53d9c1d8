#include "syncrun/torch/cross_entropy.hpp"

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <limits>
#include <string>

#include "libtorch/cuda_part.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::usage, "cross_entropy: " + what); }

void check(const ::torch::Tensor& scores, const ::torch::Tensor& targets) {
  const auto type = scores.scalar_type();
  if (type != ::torch::kFloat32 && type != ::torch::kFloat64 && type != ::torch::kBFloat16)
    refuse("expected scores of type float32, float64 or bfloat16, got " + c10::str(type));
  if (targets.scalar_type() != ::torch::kInt64)
    refuse("expected targets of type int64, got " + c10::str(targets.scalar_type()));
  if (scores.dim() == 0 || scores.size(-1) == 0)
    refuse("expected scores of at least one class in the last dimension, got the shape " + c10::str(scores.sizes()));
  if (targets.sizes() != scores.sizes().slice(0, static_cast<std::size_t>(scores.dim() - 1))) {
    refuse("expected targets in the shape of the scores without the last dimension, got targets " +
           c10::str(targets.sizes()) + " and scores " + c10::str(scores.sizes()));
  }
  if (targets.numel() > std::numeric_limits<std::int32_t>::max())
    refuse("expected at most 2147483647 targets, got " + std::to_string(targets.numel()));
  if (targets.device() != scores.device())
    refuse("the targets are on " + c10::str(targets.device()) + ", and the scores on " + c10::str(scores.device()));
}

/// An ignore_index that no target has.
constexpr std::int64_t kIgnoreNone = std::numeric_limits<std::int64_t>::min();

/// On CUDA devices: the mean, and the number of targets that count. With p the softmax of a row of scores, n this number,
/// and g the gradient of the mean, the gradient of score j is (p[j] - (j == target)) * g / n.
class CrossEntropy : public ::torch::autograd::Function<CrossEntropy> {
 public:
  static ::torch::autograd::variable_list forward(::torch::autograd::AutogradContext* context,
                                                  const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                                                  std::int64_t ignore_index) {
    const auto rows = scores.contiguous();
    const auto wanted = targets.contiguous();
    auto [loss, sums, count] = detail::cuda_part().operations().cross_entropy(rows, wanted, ignore_index);
    context->save_for_backward({rows, wanted, sums, count});
    context->saved_data["ignore_index"] = ignore_index;
    context->mark_non_differentiable({count});
    return {loss, count};
  }

  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   const ::torch::autograd::variable_list& gradients) {
    if (::torch::GradMode::is_enabled()) refuse("second derivatives are not supported (create_graph)");
    if (!gradients[0].defined()) return {{}, {}, {}};
    const auto saved = context->get_saved_variables();
    return {detail::cuda_part().operations().cross_entropy_gradient(
                saved[0], saved[1], {gradients[0], saved[2], saved[3]}, context->saved_data["ignore_index"].toInt()),
            {},
            {}};
  }
};

/// Lets LibTorch compute the loss, in the type of the result.
::torch::Tensor by_libtorch(const ::torch::Tensor& scores, const ::torch::Tensor& targets, at::Reduction::Reduction how,
                            std::int64_t ignore_index, const ::torch::Tensor& class_weights) {
  const auto type = scores.scalar_type() == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32;
  const auto weights = class_weights.defined() ? class_weights.to(type) : class_weights;
  return ::torch::cross_entropy_loss(scores.reshape({-1, scores.size(-1)}).to(type), targets.reshape({-1}), weights,
                                     how, ignore_index);
}

/// How much the targets count.
::torch::Tensor count_of(const ::torch::Tensor& targets, std::int64_t ignore_index,
                         const ::torch::Tensor& class_weights) {
  const ::torch::NoGradGuard no_gradients;
  const auto counts = targets.reshape({-1}).ne(ignore_index);
  if (!class_weights.defined()) return counts.sum();
  // A target that does not count may be no class.
  const auto weights =
      class_weights.to(::torch::kFloat64).index_select(0, ::torch::where(counts, targets.reshape({-1}), 0));
  return ::torch::where(counts, weights, 0.0).sum();
}

}  // namespace

::torch::Tensor cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets) {
  check(scores, targets);
  if (scores.is_cuda() && targets.numel() != 0) return CrossEntropy::apply(scores, targets, kIgnoreNone)[0];
  return by_libtorch(scores, targets, at::Reduction::Mean, kIgnoreNone, {});
}

WeightedLoss cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets, std::int64_t ignore_index,
                           const ::torch::Tensor& class_weights) {
  check(scores, targets);
  if (class_weights.defined() &&
      (class_weights.dim() != 1 || class_weights.size(0) != scores.size(-1) || !class_weights.is_floating_point())) {
    refuse("expected floating-point weights for " + std::to_string(scores.size(-1)) + " classes, got " +
           c10::str(class_weights.scalar_type()) + " of shape " + c10::str(class_weights.sizes()));
  }
  if (!scores.is_cuda() || targets.numel() == 0 || class_weights.defined()) {
    return {by_libtorch(scores, targets, at::Reduction::Sum, ignore_index, class_weights),
            count_of(targets, ignore_index, class_weights)};
  }
  const auto parts = CrossEntropy::apply(scores, targets, ignore_index);
  const auto& count = parts[1];
  return {::torch::where(count == 0, ::torch::zeros_like(count), parts[0] * count), count};
}

}  // namespace syncrun::libtorch

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

/// On CUDA devices. With p the softmax of a row of scores, n the number of targets that count, and g the gradient of the
/// result, the gradient of score j is (p[j] - (j == target)) * g / n.
class CrossEntropy : public ::torch::autograd::Function<CrossEntropy> {
 public:
  static ::torch::Tensor forward(::torch::autograd::AutogradContext* context, const ::torch::Tensor& scores,
                                 const ::torch::Tensor& targets, std::int64_t ignore_index) {
    const auto rows = scores.contiguous();
    const auto wanted = targets.contiguous();
    auto [loss, sums, count] = detail::cuda_part().operations().cross_entropy(rows, wanted, ignore_index);
    context->save_for_backward({rows, wanted, sums, count});
    context->saved_data["ignore_index"] = ignore_index;
    return loss;
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

}  // namespace

::torch::Tensor cross_entropy(const ::torch::Tensor& scores, const ::torch::Tensor& targets,
                              std::int64_t ignore_index) {
  check(scores, targets);
  if (scores.is_cuda() && targets.numel() != 0) return CrossEntropy::apply(scores, targets, ignore_index);
  const auto type = scores.scalar_type() == ::torch::kFloat64 ? ::torch::kFloat64 : ::torch::kFloat32;
  return ::torch::cross_entropy_loss(scores.reshape({-1, scores.size(-1)}).to(type), targets.reshape({-1}), {},
                                     at::Reduction::Mean, ignore_index);
}

}  // namespace syncrun::libtorch

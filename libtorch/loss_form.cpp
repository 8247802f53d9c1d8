#include "libtorch/loss_form.hpp"

#include <torch/csrc/autograd/generated/Functions.h>

#include <cstdint>
#include <memory>
#include <string>

#include "syncrun/detail/number_text.hpp"

namespace syncrun::libtorch::detail {

namespace {

namespace generated = ::torch::autograd::generated;
using LossNode = std::shared_ptr<::torch::autograd::Node>;

/// Whether it is one of these functions, with the reduction `sum`.
template <class... Functions>
bool is_sum_of(const LossNode& node) {
  const auto is = [&](const auto* function) {
    return function != nullptr && function->reduction == at::Reduction::Sum;
  };
  return (is(dynamic_cast<const Functions*>(node.get())) || ...);
}

/// Whether the mean of these targets has other weights than 1.
template <class Function>
std::string why_no_mean_of_targets(const LossNode& node) {
  auto* const function = dynamic_cast<Function*>(node.get());
  if (function == nullptr || function->reduction != at::Reduction::Mean) return {};
  const ::torch::Tensor targets = function->target_.unpack();
  constexpr std::int64_t kMostInFloat32 = std::int64_t{1} << 24;
  const ::torch::Tensor total = function->total_weight_.unpack(node);
  // In 16 bits, LibTorch rounds the total.
  const bool is_exact = total.scalar_type() == at::kFloat || total.scalar_type() == at::kDouble;
  if (!targets.is_cpu() || !is_exact || targets.numel() > kMostInFloat32) return {};
  const auto weight = total.template item<double>();
  if (weight == static_cast<double>(targets.numel())) return {};
  return "the loss is a mean over targets with the total weight " + syncrun::detail::number_text(weight) +
         ", expected " + std::to_string(targets.numel()) +
         ", one for each target: some are ignored, or classes have weights. Return libtorch::cross_entropy(scores, "
         "targets, ignore_index, class_weights), or another WeightedLoss";
}

/// Looks at `left` nodes at most.
std::string why_no_mean_at(const LossNode& node, int& left) {
  if (!node || left-- <= 0) return {};
  if (is_sum_of<generated::BinaryCrossEntropyBackward0, generated::BinaryCrossEntropyWithLogitsBackward0,
                generated::MseLossBackward0, generated::NllLossBackward0, generated::NllLoss2DBackward0,
                generated::SmoothL1LossBackward0, generated::HuberLossBackward0, generated::SoftMarginLossBackward0,
                generated::MultiMarginLossBackward0, generated::MultilabelMarginLossBackward0>(node)) {
    return "the loss is a sum over rows (" + node->name() +
           " with Reduction::Sum), expected their mean. Return a libtorch::SummedLoss, or use Reduction::Mean. "
           "If it is not over rows, such as a penalty on parameters, multiply it by a factor";
  }
  std::string why = why_no_mean_of_targets<generated::NllLossBackward0>(node);
  if (why.empty()) why = why_no_mean_of_targets<generated::NllLoss2DBackward0>(node);
  if (!why.empty()) return why;
  const std::string name = node->name();
  if (name != "AddBackward0" && name != "SubBackward0" && name != "ToCopyBackward0") return {};
  for (const auto& next : node->next_edges()) {
    why = why_no_mean_at(next.function, left);
    if (!why.empty()) return why;
  }
  return {};
}

}  // namespace

std::string why_no_mean(const ::torch::Tensor& loss) {
  int left = 64;
  return why_no_mean_at(loss.grad_fn(), left);
}

}  // namespace syncrun::libtorch::detail

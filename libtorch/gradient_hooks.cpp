#include "libtorch/gradient_hooks.hpp"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "libtorch/module_tensors.hpp"
#include "syncrun/detail/number_text.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using Node = ::torch::autograd::Node;
using syncrun::detail::os::MutexLock;

/// All nodes that the backward pass from `loss` can reach.
std::unordered_set<const Node*> reachable_nodes(const ::torch::Tensor& loss) {
  std::unordered_set<const Node*> found;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && found.insert(node).second) open.push_back(node);
  };
  const auto edge = ::torch::autograd::impl::gradient_edge(loss);
  visit(edge.function.get());
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    for (const auto& next : node->next_edges()) visit(next.function.get());
  }
  return found;
}

[[noreturn]] void refuse_gradient(const std::string& name, const std::string& what) {
  throw Error(ErrorKind::usage, "the gradient of parameter '" + name + "' " + what);
}

}  // namespace

class GradientHooks::Hook final : public ::torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<GradientHooks> watch, std::size_t index) : watch_(std::move(watch)), index_(index) {}
  ::torch::autograd::variable_list operator()(const ::torch::autograd::variable_list& outputs,
                                              const ::torch::autograd::variable_list&) override {
    if (const auto watch = watch_.lock()) watch->finish(index_);
    return outputs;
  }

 private:
  std::weak_ptr<GradientHooks> watch_;
  std::size_t index_;
};

void GradientHooks::run(const ::torch::Tensor& loss, const std::function<void()>& backward,
                        const std::vector<BoundParameter>& parameters, const FlatVector& gradient, FiniteCheck check,
                        const GradientReport& report, std::int64_t steps) {
  attach(parameters);
  const Pass pass{&parameters, gradient, check, &report, steps};
  {
    const MutexLock lock(mutex_);
    is_final_.assign(parameters.size(), false);
    end_ = parameters.size();
    failure_ = nullptr;
    pass_ = &pass;
  }
  try {
    if (report) add_unused(loss);
    backward();
    end_pass();
  } catch (...) {
    // LibTorch may have wrapped it, or caught it on a thread of its own.
    if (const auto failure = end_pass()) std::rethrow_exception(failure);
    throw;
  }
}

/// Returns what a hook has thrown.
std::exception_ptr GradientHooks::end_pass() {
  const MutexLock lock(mutex_);
  pass_ = nullptr;
  return std::exchange(failure_, nullptr);
}

void GradientHooks::attach(const std::vector<BoundParameter>& parameters) {
  graph_nodes_.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto node = ::torch::autograd::impl::grad_accumulator(parameters[i].tensor);
    if (node == graph_nodes_[i]) continue;
    node->add_post_hook(std::make_unique<Hook>(weak_from_this(), i));
    graph_nodes_[i] = std::move(node);
  }
}

/// A parameter that the loss does not use keeps the gradient zero, and no hook runs for it.
void GradientHooks::add_unused(const ::torch::Tensor& loss) {
  const auto used = reachable_nodes(loss);
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < graph_nodes_.size(); ++i) is_final_[i] = !used.contains(graph_nodes_[i].get());
  report_end();
}

void GradientHooks::finish(std::size_t index) {
  const MutexLock lock(mutex_);
  if (pass_ == nullptr) return;  // a backward pass of the program itself
  if (!failure_) {
    try {
      if (pass_->check == FiniteCheck::gradients) check_finite((*pass_->parameters)[index]);
      if (*pass_->report) add_final(index);
      return;
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  // LibTorch's threads handle only exceptions of this type.
  throw std::runtime_error("a gradient was refused");
}

void GradientHooks::check_finite(const BoundParameter& parameter) const {
  ::torch::Tensor gradient = parameter.tensor.grad();
  if (!gradient.defined()) return;
  const ::torch::NoGradGuard no_gradients;
  if (gradient.layout() == ::torch::kSparse) gradient = gradient.to_dense();
  const auto is_finite = ::torch::isfinite(gradient.detach()).flatten();
  if (is_finite.all().item<bool>()) return;
  const auto element = is_finite.logical_not().nonzero()[0].item<std::int64_t>();
  const auto value = gradient.flatten()[element].item<double>();
  refuse_gradient(parameter.name,
                  "is " + (std::isnan(value) ? "nan" : syncrun::detail::number_text(value)) + " at element " +
                      std::to_string(element) + " in training run " + std::to_string(pass_->steps) +
                      " of this module, expected finite numbers. It is the first such parameter in the order of the "
                      "backward pass. Look at the operations that use it, or clip their inputs");
}

void GradientHooks::add_final(std::size_t index) {
  const BoundParameter& parameter = (*pass_->parameters)[index];
  if (is_final_[index]) {
    refuse_gradient(parameter.name,
                    "was added to after it was final: the backward pass contains another backward pass, expected one. "
                    "Use GradientAverage::after_backward for this loss");
  }
  check_gradient_place(parameter, pass_->gradient);
  is_final_[index] = true;
  report_end();
}

/// Reports the final end of the gradient if it has grown.
void GradientHooks::report_end() {
  const std::size_t before = end_;
  while (end_ > 0 && is_final_[end_ - 1]) --end_;
  if (end_ != before) (*pass_->report)((*pass_->parameters)[end_].offset);
}

}  // namespace syncrun::libtorch::detail

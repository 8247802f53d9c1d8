#pragma once

// GradientHooks: notices during a backward pass which gradients are final, by hooks on the parameters.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "common/os/mutex.hpp"
#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

/// Hooks on the nodes of LibTorch's graph that add to the gradients of the parameters (AccumulateGrad). Such a node runs
/// once in a backward pass, when all contributions to its parameter are known, so a tied parameter is final then.
class GradientHooks : public std::enable_shared_from_this<GradientHooks> {
 public:
  /// Computes gradients of the loss, by `backward`. The gradients are parts of `gradient`. `steps` is for messages. Throws
  /// what a hook of this object has thrown, as it was thrown.
  void run(const ::torch::Tensor& loss, const std::function<void()>& backward,
           const std::vector<BoundParameter>& parameters, const FlatVector& gradient, FiniteCheck check,
           const GradientReport& report, std::int64_t steps);

 private:
  class Hook;
  /// What a backward pass works on.
  struct Pass {
    const std::vector<BoundParameter>* parameters;
    const FlatVector& gradient;
    FiniteCheck check;
    const GradientReport* report;
    std::int64_t steps;
  };

  void attach(const std::vector<BoundParameter>& parameters);
  void add_unused(const ::torch::Tensor& loss);
  std::exception_ptr end_pass();
  void finish(std::size_t index);
  void check_finite(const BoundParameter& parameter) const SYNCRUN_REQUIRES(mutex_);
  void add_final(std::size_t index) SYNCRUN_REQUIRES(mutex_);
  void report_end() SYNCRUN_REQUIRES(mutex_);

  // The graph refers to these nodes weakly, and a node that is made again has no hook.
  std::vector<std::shared_ptr<::torch::autograd::Node>> graph_nodes_;
  syncrun::detail::os::Mutex mutex_;  // LibTorch may run hooks on several threads, one for each device
  const Pass* pass_ SYNCRUN_GUARDED_BY(mutex_) = nullptr;
  std::vector<bool> is_final_ SYNCRUN_GUARDED_BY(mutex_);
  // The gradients of the parameters [end_, count) are final, and were reported.
  std::size_t end_ SYNCRUN_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ SYNCRUN_GUARDED_BY(mutex_);
};

}  // namespace syncrun::libtorch::detail

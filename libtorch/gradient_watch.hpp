#pragma once

// GradientWatch: notices during a backward pass which gradients are final, by hooks on the parameters.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "syncrun/torch/backward.hpp"
#include "syncrun/torch/torch_seam.hpp"

namespace syncrun::libtorch::detail {

/// Hooks on the nodes of LibTorch's graph that add to the gradients of the parameters (AccumulateGrad). Such a node runs
/// once in a backward pass, when all contributions to its parameter are known, so a tied parameter is final then.
class GradientWatch : public std::enable_shared_from_this<GradientWatch> {
 public:
  /// Runs the backward pass. The gradients are parts of `gradient`. `steps` is for messages. Throws what a hook of this
  /// object has thrown, as it was thrown.
  void run(const ::torch::Tensor& loss, const std::vector<BoundParameter>& parameters, const float* gradient,
           FiniteCheck check, const GradientReport& report, std::int64_t steps);

 private:
  class Hook;
  /// What a backward pass works on.
  struct Pass {
    const std::vector<BoundParameter>* parameters;
    const float* gradient;
    FiniteCheck check;
    const GradientReport* report;
    std::int64_t steps;
  };

  void attach(const std::vector<BoundParameter>& parameters);
  void add_unused(const ::torch::Tensor& loss);
  void finish(std::size_t index);
  void check_finite(const BoundParameter& parameter) const;
  void add_final(std::size_t index);
  void report_end();

  // The graph refers to these nodes weakly, and a node that is made again has no hook.
  std::vector<std::shared_ptr<::torch::autograd::Node>> nodes_;
  std::mutex mutex_;  // LibTorch may run hooks on several threads, one for each device
  const Pass* pass_ = nullptr;
  std::vector<bool> is_final_;
  std::size_t end_ = 0;  // the gradients of the parameters [end_, count) are final, and were reported
  std::exception_ptr failure_;
};

}  // namespace syncrun::libtorch::detail

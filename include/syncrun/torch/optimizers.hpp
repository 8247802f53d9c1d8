#pragma once

// Optimizers that LibTorch has only in Python: Muon and Adafactor. They are for a body of your own, like all optimizers
// of LibTorch (docs/libtorch.md, "An optimizer of LibTorch"). They cannot be the rule of train_step(): a rule there
// updates each element by itself, in any share of the flat vector, but these need whole matrices.
//
// After average(), all ranks have the same gradients. If each rank has an optimizer for all parameters, each has all of
// the state and computes the whole update, and the parameters stay equal. DividedOptimizer divides the state and the
// work among the ranks. On a GPU, no function here waits for the device.

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "syncrun/any_worker.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch {

/// Options of Muon, of each of its groups. The defaults are those of torch.optim.Muon.
struct SYNCRUN_EXPORT MuonOptions : ::torch::optim::OptimizerCloneableOptions<MuonOptions> {
  /// How the rate depends on the shape [rows, columns] of a matrix.
  enum class Rate : std::int64_t {
    original,           ///< lr sqrt(max(1, rows / columns)).
    match_rms_adamw,    ///< 0.2 lr sqrt(max(rows, columns)): rates and decays of AdamW fit.
    spectral_unclamped  ///< lr sqrt(rows / columns).
  };

  /// a, b and c of an iteration X = a X + (b A + c A A) X, with A = X X^T.
  using Coefficients = std::tuple<double, double, double>;

  /// With this learning rate.
  explicit MuonOptions(double rate = 1e-3) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.1;  ///< Decoupled: the matrix is first multiplied by 1 - lr weight_decay.
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(double, eps) = 1e-7;
  TORCH_ARG(std::int64_t, ns_steps) = 5;  ///< Iterations of Newton and Schulz.
  TORCH_ARG(Coefficients, ns_coefficients) = {3.4445, -4.7750, 2.0315};
  TORCH_ARG(Rate, rate) = Rate::original;
  TORCH_ARG(::torch::ScalarType, ns_type) = ::torch::kBFloat16;  ///< Of the iterations. PyTorch's is bfloat16.

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double rate) override;
};

/// Muon, for matrices in the hidden layers: B = momentum B + (1 - momentum) G, then U = momentum B + (1 - momentum) G,
/// or U = B without nesterov. The matrix changes by -lr O, where O has the singular vectors of U and singular values
/// near 1.
/// Source: K. Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024), as in torch.optim.Muon (PyTorch
/// 2.15).
///
/// Embeddings, the last layer, biases and weights of norms belong to another optimizer, such as torch::optim::AdamW.
/// All parameters have two dimensions.
class SYNCRUN_EXPORT Muon : public ::torch::optim::Optimizer {
 public:
  /// Optimizes groups of parameters. A group without options has the defaults. Throws Error (usage) if a parameter has
  /// not two dimensions.
  explicit Muon(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                const MuonOptions& defaults = MuonOptions());
  /// Optimizes parameters, as one group.
  explicit Muon(std::vector<::torch::Tensor> parameters, const MuonOptions& defaults = MuonOptions());

  /// Updates the parameters that have a gradient. Returns what the closure returned.
  ::torch::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
};

/// Options of Adafactor, of each of its groups. The defaults are those of torch.optim.Adafactor.
struct SYNCRUN_EXPORT AdafactorOptions : ::torch::optim::OptimizerCloneableOptions<AdafactorOptions> {
  /// With this learning rate.
  explicit AdafactorOptions(double rate = 1e-2) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, beta2_decay) = -0.8;
  TORCH_ARG(std::optional<double>, eps1) = std::nullopt;  ///< Without a value, the epsilon of the parameter's type.
  TORCH_ARG(double, eps2) = 1e-3;
  TORCH_ARG(double, d) = 1;             ///< The largest root mean square of an update before it is scaled by the rate.
  TORCH_ARG(double, weight_decay) = 0;  ///< Decoupled.

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double rate) override;
};

/// Adafactor: for a matrix [rows, columns], it stores the means of the squared gradient of each row and each column, so
/// the state has rows + columns numbers. For more dimensions, the last two are the matrix. A vector has a state as long
/// as itself. Source: N. Shazeer, M. Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", arXiv
/// 1804.04235, as in torch.optim.Adafactor (PyTorch 2.15).
class SYNCRUN_EXPORT Adafactor : public ::torch::optim::Optimizer {
 public:
  /// Optimizes groups of parameters. A group without options has the defaults.
  explicit Adafactor(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                     const AdafactorOptions& defaults = AdafactorOptions());
  /// Optimizes parameters, as one group.
  explicit Adafactor(std::vector<::torch::Tensor> parameters, const AdafactorOptions& defaults = AdafactorOptions());

  /// Updates the parameters that have a gradient. Returns what the closure returned.
  ::torch::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
};

/// Divides an optimizer among the ranks: each rank has the state of some parameters, computes their update, and gets the
/// others from the other ranks. The result is that of one optimizer for all parameters, if the rule looks at each
/// parameter by itself, as Muon, Adafactor and all of torch::optim but LBFGS do. Whole tensors are divided, so this helps
/// if there are more of them than ranks. In a body of all ranks:
///
///   optimizer.zero_grad();
///   loss.backward();
///   sr::libtorch::average(comm, net);
///   optimizer.step(comm);
///
/// Source: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv
/// 1910.02054, its first stage. PyTorch has it as ZeroRedundancyOptimizer.
template <class Optimizer>
class DividedOptimizer {
 public:
  /// All ranks pass the same parameters in the same order. `arguments` follow the parameters in the constructor of
  /// Optimizer. Throws Error (usage) if a parameter occurs twice or is not of float64, float32, float16 or bfloat16, and
  /// what that constructor throws.
  template <class... Arguments>
  DividedOptimizer(const AnyWorker& worker, std::vector<::torch::Tensor> parameters, Arguments&&... arguments)
      : parameters_(std::move(parameters), worker.rank(), worker.world_size()),
        own_(parameters_.own(), std::forward<Arguments>(arguments)...) {}

  /// The optimizer of this rank's parameters. With fewer tensors than ranks, some ranks have none. A file of it has the
  /// state of this rank only.
  Optimizer& own() noexcept { return own_; }

  /// Sets the gradients of all parameters to zero.
  void zero_grad() {
    for (const ::torch::Tensor& each : parameters_.all()) {
      if (each.grad().defined()) each.mutable_grad().zero_();
    }
  }

  /// Updates all parameters. All ranks call it. Copies the parameters once, through memory of their size. Throws what
  /// the optimizer throws, and the errors of a collective.
  void step(Comm& comm) {
    own_.step();
    parameters_.exchange(comm);
  }

 private:
  detail::DividedParameters parameters_;
  Optimizer own_;
};

}  // namespace syncrun::libtorch

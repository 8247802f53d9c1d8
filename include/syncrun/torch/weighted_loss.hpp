#pragma once

// Losses that are no mean over rows: WeightedLoss, a sum with the number of terms that count, and SummedLoss.

#include <torch/torch.h>

#include <concepts>
#include <utility>

#include "syncrun/detail/export.hpp"
#include "syncrun/output.hpp"

namespace syncrun::libtorch {

/// A loss in which rows count differently: a language model with padding, or rows with weights. A loss function returns
/// it in place of a tensor. It has the sum over what counts, and how much counts:
///
///   lt::WeightedLoss loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y,
///                         sr::Scattered<const float, 1> weights) {
///     const auto squares = (net.forward(lt::tensor(x)) - lt::tensor(y)).square();
///     return {(squares * lt::tensor(weights)).sum(), lt::tensor(weights).sum()};
///   }
///
/// The objective of a train step is the sum of all ranks' and slices' `sum`, divided by the sum of their `count`. So is
/// the result of the step and of an evaluation, a WeightedMean. If a loss returns a Loss<Numbers, WeightedLoss>, the
/// averages among its numbers have the same weights.
///
/// A count of 0 is right if nothing counts on a rank or in a slice, which then contributes nothing. On a CPU device,
/// `sum` may be any number then. On a CUDA device, its gradient must be zero, as that of a sum of nothing is. If the
/// counts of all ranks add up to 0, a step on CPU devices throws Error (function). On CUDA devices, the parameters stay
/// as they are, and WeightedMean::value() throws. A count that is negative or not finite is an error on a CPU device.
///
/// On CUDA devices, TrainStep::gradient() is the sum. On CPU devices, it is divided by the counts, except in frozen
/// parts.
struct SYNCRUN_EXPORT WeightedLoss {
  /// `sum` and `count` are one number each, of any floating-point type; `count` can also have an integer type.
  WeightedLoss(::torch::Tensor sum, const ::torch::Tensor& count);
  WeightedLoss(::torch::Tensor sum, double count);
  template <std::integral Integer>
  WeightedLoss(::torch::Tensor total, Integer terms) : WeightedLoss(std::move(total), static_cast<double>(terms)) {}

  ::torch::Tensor sum;    ///< The sum over what counts, where the backward pass starts.
  ::torch::Tensor count;  ///< How much counts, on the device of `sum` and without a gradient.

  /// The mean over what counts here: NaN if nothing counts. For code that needs a tensor; a loss function returns the
  /// WeightedLoss.
  ::torch::Tensor mean() const;
};

/// A loss that is a sum over rows, as LibTorch's functions with `torch::kSum` or at::Reduction::Sum compute. A loss
/// function returns it in place of a tensor: `return lt::SummedLoss{reconstruction + divergence};`. The objective of a
/// train step is the sum over all rows, so the gradients of all ranks and slices are added. The result of the step and
/// of an evaluation is this sum, a Sum<double>. Averages among the numbers of a Loss<Numbers, SummedLoss> are means
/// over the rows.
struct SummedLoss {
  ::torch::Tensor sum;  ///< One number, where the backward pass starts.
};

/// What a caller gets for a WeightedLoss. It converts to its value.
struct SYNCRUN_EXPORT WeightedMean {
  Sum<double> sum;    ///< The sum of all ranks and slices.
  Sum<double> count;  ///< How much of them counts.

  /// sum / count. Throws Error (usage) if nothing counts.
  double value() const;
  /// The same as value().
  operator double() const { return value(); }  // NOLINT(google-explicit-constructor): const double loss = step(...)
};

}  // namespace syncrun::libtorch

#pragma once

// SyncBatchNorm: batch normalization over the rows of all ranks.

#include <torch/torch.h>

#include <ostream>

#include "syncrun/detail/export.hpp"

namespace syncrun::libtorch {

/// The module of SyncBatchNorm.
class SYNCRUN_EXPORT SyncBatchNormImpl
    : public ::torch::nn::NormImplBase<1, SyncBatchNormImpl, ::torch::nn::BatchNormOptions> {
 public:
  using NormImplBase::NormImplBase;

  /// `input` is [rows, channels] or [rows, channels, ...], of a floating-point type, and so is the result. In training,
  /// with a Comm&: called by all ranks of the call, in the same order, also by ranks without rows.
  ::torch::Tensor forward(const ::torch::Tensor& input);
  /// LibTorch calls these.
  void pretty_print(std::ostream& stream) const override;
  void _check_input_dim(const ::torch::Tensor& input) override;
};

/// A batch normalization whose mean and variance in training are those of the rows of all ranks. Use it in place of
/// torch::nn::BatchNorm1d, BatchNorm2d or BatchNorm3d. It has their options, parameters and buffers, so files fit both.
///
/// The ranks compute the statistics together, in the forward and in the backward pass. So the loss needs the ranks'
/// collectives, as a parameter `sr::Comm&` in any place, which it need not use:
///
///   torch::Tensor loss(Net& net, sr::Comm&, sr::Scattered<const float, 4> x, sr::Scattered<const std::int64_t, 1> y);
///
/// Every rank then runs the loss, also a rank without rows, whose inputs have zero rows. All ranks must run the same
/// modules in the same order. A body of your own passes its Comm& to Guard. With slices, each slice has statistics of
/// its own. The running statistics are equal on all ranks, so sync_buffers is not needed for them.
///
/// In evaluation mode, on one rank, and in a program without Syncrun, it is like LibTorch's BatchNorm. Throws Error
/// (usage): there are several ranks, but no Comm&; or all ranks together have fewer than two values of each channel.
/// Second derivatives are not supported.
TORCH_MODULE(SyncBatchNorm);

}  // namespace syncrun::libtorch

#pragma once

// Declarations for residual networks that CPU and CUDA devices share.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace resnet {

/// The number that is added to variances, and the weight of a batch in the running statistics. The values are
/// torchvision's.
inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kNormMomentum = 0.1;

/// The arguments of a step that are not arrays. They are the same on every rank.
struct LossOptions {
  double label_smoothing = 0;  // s: the target is 1 - s for the label, plus s / classes for every class
};

/// Adds up float32 values over all ranks. Every rank gets the sums, in place. Synchronized batch normalisation uses
/// this. If the function is empty, each device normalises by its own rows. On CUDA devices, the values are in device
/// memory and the sum runs in the order of the worker's stream.
using SumOverRanks = std::function<void(std::span<float>)>;

/// A backward pass calls this to say that the elements [first, parameter_count) of the gradient are final. On CUDA
/// devices this holds in the order of the worker's stream. May be empty.
using ReadyFrom = std::function<void(std::size_t first)>;

/// How well the outputs for some rows fit their labels.
struct Outcome {
  double mean_loss = 0;      // over the given rows; 0 without rows
  std::int64_t correct = 0;  // rows whose largest output (the first if several are equal) is that of their label
};

}  // namespace resnet

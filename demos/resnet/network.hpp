#pragma once

// What CPU and CUDA devices have in common where they compute a residual network.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace resnet {

/// Added to variances, and how far running statistics move towards those of a batch: torchvision's.
inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kNormMomentum = 0.1;

/// What a step needs besides arrays: the same values on every rank.
struct LossOptions {
  double label_smoothing = 0;  // s: the target is 1 - s for the label, plus s / classes for every class
};

/// Adds float32 values up over all ranks, in place, on every rank: how batch normalisation is synchronised. Left empty,
/// each device normalises by its own rows. On CUDA devices the values are device memory and the sum is in the order of the
/// worker's stream.
using SumOverRanks = std::function<void(std::span<float>)>;

/// Told while a backward pass runs, and on CUDA devices in the order of the worker's stream: elements [first, parameter_count)
/// of the gradient are final. Left empty, nobody wants to know.
using ReadyFrom = std::function<void(std::size_t first)>;

/// How well the outputs for some rows fit their labels.
struct Outcome {
  double mean_loss = 0;      // over the rows given; 0 for no rows
  std::int64_t correct = 0;  // rows whose largest output is their label's (the first of equals)
};

}  // namespace resnet

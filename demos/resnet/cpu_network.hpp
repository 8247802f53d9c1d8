#pragma once

// A residual network on a CPU device, through oneDNN, in float32. Where the build found no oneDNN there is nothing to make
// one from: the constructor says so.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "demos/resnet/architecture.hpp"
#include "demos/resnet/network.hpp"

namespace resnet {

/// Images are float32 [rows, image_size, image_size, 3], normalised; labels [rows], below `classes`; params, gradient
/// [parameter_count] and statistics [statistics_count] as the architecture lays them out. The object holds a workspace,
/// which grows with the largest number of rows seen, and no parameters. Zero rows are legal and give zeros. One object
/// serves one thread at a time, and computes on as many as OpenMP is told to. Members throw std::invalid_argument where
/// lengths do not fit together, or a label or the label smoothing is out of range, before anything is computed.
class CpuNetwork {
 public:
  /// Throws std::runtime_error where this program was built without oneDNN.
  explicit CpuNetwork(const Architecture& architecture);
  CpuNetwork(CpuNetwork&&) noexcept;
  ~CpuNetwork();

  /// The logits [rows, classes], normalised by the running statistics. They lie in the workspace until the next call.
  std::span<const float> logits(std::span<const float> params, std::span<const float> statistics,
                                std::span<const float> images);

  /// Mean loss and correct rows, normalised by the running statistics.
  Outcome evaluate(std::span<const float> params, std::span<const float> statistics, std::span<const float> images,
                   std::span<const std::int64_t> labels);

  /// Mean loss over the rows given and, in `gradient`, the gradient of that mean, overwritten; normalised by the batch,
  /// whose statistics move the running ones (a single value has variance 0). With `sum` it is the batch of all ranks, all
  /// of which call this, also without rows; the gradients of the ranks, weighted by rows, then average to that of the
  /// whole batch.
  Outcome loss_and_gradient(std::span<const float> params, std::span<float> statistics, std::span<const float> images,
                            std::span<const std::int64_t> labels, const LossOptions& options, const SumOverRanks& sum,
                            std::span<float> gradient);

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace resnet

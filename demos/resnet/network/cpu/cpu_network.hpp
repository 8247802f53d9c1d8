#pragma once

// A residual network on a CPU device, in float32. Its convolutions use oneDNN. If the build found no oneDNN, the
// constructor throws.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/network/network.hpp"

namespace resnet {

/// Images are normalised float32 [rows, image_size, image_size, 3]. Labels are [rows], below `classes`. The
/// architecture lays out params and gradient [parameter_count], and statistics [statistics_count]. The object holds a
/// workspace, but no parameters. The workspace grows when a call has more rows than all calls before. Zero rows are
/// legal and give zeros. Only one thread at a time may use an object. It computes with as many threads as OpenMP is set
/// to use. Members throw std::invalid_argument if lengths do not fit together, or if a label or the label smoothing is
/// out of range. They check this before they compute anything.
class CpuNetwork {
 public:
  /// Throws std::runtime_error if this program was built without oneDNN.
  explicit CpuNetwork(const Architecture& architecture);
  CpuNetwork(CpuNetwork&&) noexcept;
  ~CpuNetwork();

  /// Computes the logits [rows, classes]. The network normalises by the running statistics. The logits lie in the
  /// workspace and are valid until the next call.
  std::span<const float> logits(std::span<const float> params, std::span<const float> statistics,
                                std::span<const float> images);

  /// Mean loss and number of correct rows. The network normalises by the running statistics.
  Outcome evaluate(std::span<const float> params, std::span<const float> statistics, std::span<const float> images,
                   std::span<const std::int64_t> labels);

  /// Mean loss and number of correct rows. Overwrites `gradient` with the gradient of the mean loss. The network
  /// normalises by the statistics of the batch, and updates the running statistics with them (a single value has
  /// variance 0). With `sum`, the batch is that of all ranks. Then all ranks must call this, also those without rows,
  /// and the gradient of the whole batch is the average of the gradients of the ranks, weighted by their rows.
  Outcome loss_and_gradient(std::span<const float> params, std::span<float> statistics, std::span<const float> images,
                            std::span<const std::int64_t> labels, const LossOptions& options, const SumOverRanks& sum,
                            std::span<float> gradient);

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace resnet

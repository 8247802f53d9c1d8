#pragma once

// What runs on every worker: a network, one training step and an evaluation.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <syncrun/syncrun.hpp>

#include "demos/common/blas.hpp"
#include "demos/common/network.hpp"
#include "demos/mnist/training.hpp"
#ifdef DEMOS_HAVE_CUDA
#include "demos/common/cuda_network.hpp"
#endif

namespace mnist {

namespace sr = syncrun;

/// How well the parameters fit some rows.
struct Evaluation {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> correct;
};

/// One replica of the network: built on every worker, its methods are replicated functions. T is float or
/// double. A replica holds a workspace and no parameters: those are shared variables. Steps allocate nothing
/// once the workspace has grown to the batch. There is a body of each function for CPU devices and, where the
/// build has CUDA, one for CUDA devices, which does the same.
template <class T>
class Trainer {
 public:
  using Images = sr::Scattered<const T, 2>;  // [rows, pixels]
  using Labels = sr::Scattered<const std::uint8_t, 1>;
  using RowIds = sr::Scattered<const std::int64_t, 1>;  // of the rows in the whole data set: they key dropout masks
  using ImageShard = sr::Sliced<const T, 2>;
  using LabelShard = sr::Sliced<const std::uint8_t, 1>;
  using RowIdShard = sr::Sliced<const std::int64_t, 1>;
  using Vector = sr::Local<T, 1>;  // [parameters]

  using Options = sr::DeviceScalar<StepOptions>;

  /// Throws std::invalid_argument for kTf32, which only CUDA devices have, and for a model that cannot be.
  Trainer(sr::CpuWorker& worker, const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
          demos::MatrixMath math);

  /// One step of Nesterov's method on a batch that comes from shared memory; every replica's `params` and
  /// `velocity` are updated by the same gradient, that of the mean loss over all rows of the batch. Returns
  /// that loss. Called on all ranks, also on those without rows.
  sr::Avg<double> step(sr::CpuWorker& worker, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                       Vector params, Vector velocity, Vector gradient, Options options);

  /// The same on a batch that the devices hold already.
  sr::Avg<double> step_on_shards(sr::CpuWorker& worker, sr::Comm& comm, ImageShard images, LabelShard labels,
                                 RowIdShard row_ids, Vector params, Vector velocity, Vector gradient, Options options);

  /// Mean loss and number of correct rows, without dropout.
  Evaluation evaluate(sr::CpuWorker& worker, Images images, Labels labels, Vector params);

#ifdef DEMOS_HAVE_CUDA
  Trainer(sr::CudaWorker& worker, const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
          demos::MatrixMath math);
  sr::Avg<double> step_cuda(sr::CudaWorker& worker, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                            Vector params, Vector velocity, Vector gradient, Options options);
  sr::Avg<double> step_on_shards_cuda(sr::CudaWorker& worker, sr::Comm& comm, ImageShard images, LabelShard labels,
                                      RowIdShard row_ids, Vector params, Vector velocity, Vector gradient,
                                      Options options);
  Evaluation evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector params);
#endif

 private:
  /// This rank's rows of a batch.
  struct Batch {
    std::span<const T> images;
    std::span<const std::uint8_t> labels;
    std::span<const std::int64_t> row_ids;
  };
  sr::Avg<double> descend(sr::Comm& comm, const Batch& batch, Vector params, Vector velocity, Vector gradient,
                          const StepOptions& options);
  std::optional<demos::Network<T>> network_;  // on CPU devices

#ifdef DEMOS_HAVE_CUDA
  sr::Avg<double> descend(sr::CudaWorker& worker, sr::Comm& comm, const Batch& batch, Vector params, Vector velocity,
                          Vector gradient, const StepOptions* options);
  std::optional<demos::CudaNetwork<T>> cuda_network_;  // on CUDA devices
#endif
};

}  // namespace mnist

#pragma once

// The code that runs on every worker: a network, its loss and gradient, and an evaluation.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <syncrun/syncrun.hpp>

#include "demos/common/blas.hpp"
#include "demos/common/model.hpp"
#include "demos/common/network.hpp"
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

/// One replica of the network. Every worker builds one, and the master calls its methods as functions. T is float or
/// double. A replica holds a workspace. It holds no parameters, because these are shared variables. It allocates memory
/// only until the workspace is large enough for the batch. Each function has a body for CPU devices. If the build has
/// CUDA, it also has one for CUDA devices, which computes the same.
template <class T>
class Trainer {
 public:
  using Images = sr::Scattered<const T, 2>;  // [rows, pixels]
  using Labels = sr::Scattered<const std::uint8_t, 1>;
  // The numbers of the rows within the whole data set. They determine the dropout masks.
  using RowIds = sr::Scattered<const std::int64_t, 1>;
  using ImageShard = sr::Sliced<const T, 2>;
  using LabelShard = sr::Sliced<const std::uint8_t, 1>;
  using RowIdShard = sr::Sliced<const std::int64_t, 1>;
  using Vector = sr::Local<T, 1>;  // [parameters]

  using Dropout = sr::DeviceScalar<demos::StepKey>;

  /// Throws std::invalid_argument for kTf32, which only CUDA devices support, and if the model is not possible.
  Trainer(sr::CpuWorker& worker, const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
          demos::MatrixMath math);

  /// The body of a train step. Computes the mean loss of a batch from shared memory, and its gradient. Ranks without
  /// rows do not run it.
  sr::Avg<double> loss_and_gradient(sr::CpuWorker& worker, Images images, Labels labels, RowIds row_ids,
                                    Dropout dropout, Vector params, Vector gradient);

  /// The same for a batch that the devices already hold.
  sr::Avg<double> loss_and_gradient_of_shards(sr::CpuWorker& worker, ImageShard images, LabelShard labels,
                                              RowIdShard row_ids, Dropout dropout, Vector params, Vector gradient);

  /// Mean loss and number of correct rows, without dropout.
  Evaluation evaluate(sr::CpuWorker& worker, Images images, Labels labels, Vector params);

#ifdef DEMOS_HAVE_CUDA
  Trainer(sr::CudaWorker& worker, const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
          demos::MatrixMath math);
  sr::Avg<double> loss_and_gradient_cuda(sr::CudaWorker& worker, Images images, Labels labels, RowIds row_ids,
                                         Dropout dropout, Vector params, Vector gradient);
  sr::Avg<double> loss_and_gradient_of_shards_cuda(sr::CudaWorker& worker, ImageShard images, LabelShard labels,
                                                   RowIdShard row_ids, Dropout dropout, Vector params, Vector gradient);
  Evaluation evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector params);
#endif

 private:
  std::optional<demos::Network<T>> network_;  // on CPU devices

#ifdef DEMOS_HAVE_CUDA
  sr::Avg<double> loss_and_gradient_of_rows(sr::CudaWorker& worker, const demos::CudaRows<T>& rows, Dropout dropout,
                                            Vector params, Vector gradient);
  std::optional<demos::CudaNetwork<T>> cuda_network_;  // on CUDA devices
#endif
};

}  // namespace mnist

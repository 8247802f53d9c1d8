#pragma once

// What runs on every worker: a network, one training step and an evaluation.

#include <cstddef>
#include <cstdint>
#include <span>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/common/network.hpp"

namespace mnist {

namespace sr = syncrun;

/// What a step needs besides arrays: the same values on every rank.
struct StepOptions {
  double learning_rate;
  double momentum;
  demos::StepKey dropout;  // the masks' seed and step
};

/// How well the parameters fit some rows.
struct Evaluation {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> correct;
};

/// One replica of the network: built on every worker, its methods are replicated functions. T is float or
/// double. A replica holds a workspace and no parameters: those are shared variables. Steps allocate nothing
/// once the workspace has grown to the batch.
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

  Trainer(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width);

  /// One step of Nesterov's method on a batch that comes from shared memory; every replica's `params` and
  /// `velocity` are updated by the same gradient, that of the mean loss over all rows of the batch. Returns
  /// that loss. Called on all ranks, also on those without rows.
  sr::Avg<double> step(sr::CpuWorker& worker, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                       Vector params, Vector velocity, Vector gradient, StepOptions options);

  /// The same on a batch that the devices hold already.
  sr::Avg<double> step_on_shards(sr::CpuWorker& worker, sr::Comm& comm, ImageShard images, LabelShard labels,
                                 RowIdShard row_ids, Vector params, Vector velocity, Vector gradient,
                                 StepOptions options);

  /// Mean loss and number of correct rows, without dropout.
  Evaluation evaluate(sr::CpuWorker& worker, Images images, Labels labels, Vector params);

 private:
  /// This rank's rows of a batch.
  struct Batch {
    std::span<const T> images;
    std::span<const std::uint8_t> labels;
    std::span<const std::int64_t> row_ids;
  };
  sr::Avg<double> descend(sr::Comm& comm, const Batch& batch, Vector params, Vector velocity, Vector gradient,
                          const StepOptions& options);

  demos::Network<T> network_;
};

/// The parameters that training starts from, a pure function of the seed. Master.
template <class T>
std::vector<T> initial_parameters(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
                                  std::uint64_t seed);

}  // namespace mnist

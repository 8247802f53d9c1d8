#pragma once

// What runs on every worker: a network, the gradient of a training step, and an evaluation.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/resnet/architecture.hpp"
#include "demos/resnet/cpu_network.hpp"
#include "demos/resnet/images.hpp"
#include "demos/resnet/network.hpp"
#include "demos/resnet/plan_agreement.hpp"
#include "demos/resnet/precision.hpp"
#ifdef RESNET_HAVE_CUDA
#include "demos/resnet/cuda_network.hpp"
#endif

namespace resnet {

namespace sr = syncrun;

/// What a trainer is built from, the same on every worker.
struct TrainerSettings {
  ArchitectureSpec architecture;
  Preparation preparation;
  LossOptions loss;
  Normalization normalization = Normalization::kPerDevice;
  Precision precision = Precision::kFloat32;
};

/// What changes from step to step, besides rows and the optimizer's numbers.
struct StepInput {
  AugmentKey augment;
};

/// How well the parameters fit some rows.
struct Fit {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> correct;
};

/// One replica of the network: built on every worker, its methods are replicated functions. It holds a workspace and no
/// parameters: those are shared variables. There is a body of each function for CPU devices and, where the build has CUDA,
/// one for CUDA devices, which does the same.
class Trainer {
 public:
  using Images = sr::Scattered<const std::uint8_t, 4>;  // [rows, height, width, 3], as they are stored
  using Labels = sr::Scattered<const std::int64_t, 1>;
  using RowIds = sr::Scattered<const std::int64_t, 1>;     // in the data set: they key crops
  using DeviceImages = sr::Sliced<const std::uint8_t, 4>;  // the same, where they are on the devices already
  using DeviceIntegers = sr::Sliced<const std::int64_t, 1>;
  using Vector = sr::Local<float, 1>;  // params, gradient: [parameter_count]; [statistics_count]
  using Input = sr::DeviceScalar<StepInput>;

  /// Throws std::invalid_argument for what only CUDA devices have, and for a network that cannot be.
  Trainer(sr::CpuWorker& worker, const TrainerSettings& settings);

  /// The body of a train step: mean loss and correct rows, of the rows as the step's crops show them and with the
  /// parameters as they are; moves the running statistics, and overwrites the gradient. Called on all ranks, also on those
  /// without rows.
  Fit loss_and_gradient(sr::CpuWorker& worker, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                        Vector statistics, Input input, Vector params, Vector gradient);

  /// The same of rows that are on the devices already.
  Fit device_loss_and_gradient(sr::CpuWorker& worker, sr::Comm& comm, DeviceImages images, DeviceIntegers labels,
                               DeviceIntegers row_ids, Vector statistics, Input input, Vector params, Vector gradient);

  /// Mean loss and correct rows of the middles of images, normalised by the running statistics.
  Fit evaluate(sr::CpuWorker& worker, Images images, Labels labels, Vector statistics, Vector params);

#ifdef RESNET_HAVE_CUDA
  Trainer(sr::CudaWorker& worker, const TrainerSettings& settings);
  Fit loss_and_gradient_cuda(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready, Images images,
                             Labels labels, RowIds row_ids, Vector statistics, Input input, Vector params,
                             Vector gradient);
  Fit device_loss_and_gradient_cuda(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                                    DeviceImages images, DeviceIntegers labels, DeviceIntegers row_ids,
                                    Vector statistics, Input input, Vector params, Vector gradient);
  Fit evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector statistics, Vector params);

  using Bytes = sr::Broadcast<const std::uint8_t, 1>;  // the text of a list of plans
  using OwnBytes = sr::Gather<std::uint8_t, 1>;

  /// The plans that this rank has so far. Called on one rank.
  OwnBytes plans_cuda(sr::CudaWorker& worker);
  /// Takes the plans that are known, and chooses by timing those that passes over so many rows need besides. Returns both.
  /// Called on one rank.
  OwnBytes choose_plans_cuda(sr::CudaWorker& worker, Bytes known, PassRows rows);
  /// Takes plans, unless they are for another kind of GPU than this rank's. Called on all ranks.
  void adopt_plans_cuda(sr::CudaWorker& worker, Bytes plans);
#endif

 private:
  /// Rows of a step, wherever they come from.
  struct StepRows {
    sr::ArrayView<const std::uint8_t, 4> images;
    sr::ArrayView<const std::int64_t, 1> labels;
    sr::ArrayView<const std::int64_t, 1> ids;
  };
  Fit step(sr::Comm& comm, const StepRows& rows, const Vector& statistics, const Input& input, const Vector& params,
           const Vector& gradient);
#ifdef RESNET_HAVE_CUDA
  /// What a step asks of the framework.
  struct StepPlace {
    sr::CudaWorker& worker;
    sr::Comm& comm;
    sr::GradientReady& ready;
  };
  Fit step(const StepPlace& place, const StepRows& rows, const Vector& statistics, const Input& input,
           const Vector& params, const Vector& gradient);
  void tell_of_own_plans(sr::CudaWorker& worker);
#endif
  std::span<const float> prepare(const sr::ArrayView<const std::uint8_t, 4>& images,
                                 std::span<const std::int64_t> row_ids, const AugmentKey& key);

  TrainerSettings settings_;
  std::optional<CpuNetwork> network_;  // on CPU devices
  std::vector<float> prepared_;        // grows with the largest number of rows seen
#ifdef RESNET_HAVE_CUDA
  /// On CUDA devices: two networks, so that an evaluation leaves alone what a captured step works with.
  std::unique_ptr<CudaNetwork> training_network_;
  std::unique_ptr<CudaNetwork> evaluation_network_;
  std::shared_ptr<ConvPlans> plans_;      // of both
  std::optional<std::size_t> agreed_on_;  // how many plans all ranks have agreed on; none: each rank chooses its own
  demos::DeviceBuffer still_;             // an AugmentKey without draws
#endif
};

}  // namespace resnet

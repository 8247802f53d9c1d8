#pragma once

// The code that runs on every worker: a network, the gradient of a training step, and an evaluation.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/network/cpu/cpu_network.hpp"
#include "demos/resnet/network/images.hpp"
#include "demos/resnet/network/network.hpp"
#include "demos/resnet/network/precision.hpp"
#include "demos/resnet/program/plan_agreement.hpp"
#ifdef RESNET_HAVE_CUDA
#include "demos/resnet/network/cuda/cuda_network.hpp"
#endif

namespace resnet {

namespace sr = syncrun;

/// The settings of a trainer, the same on every worker.
struct TrainerSettings {
  ArchitectureSpec architecture;
  Preparation preparation;
  LossOptions loss;
  Normalization normalization = Normalization::kPerDevice;
  Precision precision = Precision::kFloat32;
};

/// The arguments of a step that change from step to step, besides the rows and the hyperparameters of the optimizer.
struct StepInput {
  AugmentKey augment;
};

/// How well the parameters fit some rows.
struct Fit {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> correct;
};

/// One replica of the network. Every worker builds one, and the master calls its methods as functions. A replica holds
/// a workspace. It holds no parameters, because these are shared variables. Each function has a body for CPU devices.
/// If the build has CUDA, it also has one for CUDA devices, which computes the same.
class Trainer {
 public:
  using Images = sr::Scattered<const std::uint8_t, 4>;  // [rows, height, width, 3], as they are stored
  using Labels = sr::Scattered<const std::int64_t, 1>;
  using RowIds = sr::Scattered<const std::int64_t, 1>;     // row numbers within the data set; they determine the crops
  using DeviceImages = sr::Sliced<const std::uint8_t, 4>;  // as Images, but already on the devices
  using DeviceIntegers = sr::Sliced<const std::int64_t, 1>;
  using Vector = sr::Local<float, 1>;  // params, gradient: [parameter_count]; [statistics_count]
  using Input = sr::DeviceScalar<StepInput>;

  /// Throws std::invalid_argument for settings that only CUDA devices support, and if the network is not possible.
  Trainer(sr::CpuWorker& worker, const TrainerSettings& settings);

  /// The body of a train step. Crops the images of the rows as the step says. Returns their mean loss and the number of
  /// correct rows with the present parameters. Updates the running statistics, and overwrites the gradient. It runs on
  /// all ranks, also on those without rows.
  Fit loss_and_gradient(sr::CpuWorker& worker, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                        Vector statistics, Input input, Vector params, Vector gradient);

  /// The same for rows that are already on the devices.
  Fit device_loss_and_gradient(sr::CpuWorker& worker, sr::Comm& comm, DeviceImages images, DeviceIntegers labels,
                               DeviceIntegers row_ids, Vector statistics, Input input, Vector params, Vector gradient);

  /// Mean loss and number of correct rows. Evaluates the middle part of each image. The network normalises by the
  /// running statistics.
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

  using OwnBytes = sr::Gather<std::uint8_t, 1>;  // the text of a list of plans

  /// Returns the plans that this rank has so far. The master calls this on one rank.
  OwnBytes plans_cuda(sr::CudaWorker& worker);
  /// Takes over the known plans, and chooses by timing the other plans that passes over `rows` rows need. Returns both.
  /// The master calls this on one rank.
  OwnBytes choose_plans_cuda(sr::CudaWorker& worker, std::string_view known, PassRows rows);
  /// Takes over plans, unless they are for another kind of GPU than this rank's. The master calls this on all ranks.
  void adopt_plans_cuda(sr::CudaWorker& worker, std::string_view plans);
#endif

 private:
  /// The rows of a step, from shared memory or from the device.
  struct StepRows {
    sr::ArrayView<const std::uint8_t, 4> images;
    sr::ArrayView<const std::int64_t, 1> labels;
    sr::ArrayView<const std::int64_t, 1> ids;
  };
  Fit step(sr::Comm& comm, const StepRows& rows, const Vector& statistics, const Input& input, const Vector& params,
           const Vector& gradient);
#ifdef RESNET_HAVE_CUDA
  /// The objects of Syncrun that a step uses.
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
  /// On CUDA devices. There are two networks, so that an evaluation does not change the memory that a captured step
  /// uses.
  std::unique_ptr<CudaNetwork> training_network_;
  std::unique_ptr<CudaNetwork> evaluation_network_;
  std::shared_ptr<ConvPlans> plans_;      // of both networks
  std::optional<std::size_t> agreed_on_;  // number of plans that all ranks share; empty: each rank chooses its own
  demos::DeviceBuffer still_;             // an AugmentKey without random draws
#endif
};

}  // namespace resnet

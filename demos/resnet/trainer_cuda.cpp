// The bodies of a Trainer for CUDA devices. All they do is put work on the worker's stream: steps are captured once per
// shape and replayed, so that nothing here may depend on anything but shapes and addresses.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "demos/common/cuda_check.hpp"
#include "demos/resnet/trainer.hpp"

namespace resnet {
namespace {

CudaHandles handles_of(const sr::CudaWorker& worker) { return {worker.stream(), worker.cublas(), worker.cudnn()}; }

CudaMath math_of(Precision precision) {
  switch (precision) {
    case Precision::kFloat32: return CudaMath::kFloat32;
    case Precision::kTf32: return CudaMath::kTf32;
    case Precision::kBfloat16: return CudaMath::kBfloat16;
  }
  return CudaMath::kFloat32;
}

CudaBatch batch_of(const TrainerSettings& settings, const sr::ArrayView<const std::uint8_t, 4>& images,
                   const sr::ArrayView<const std::int64_t, 1>& labels, const std::int64_t* row_ids,
                   const AugmentKey* key) {
  const ImageShape shape{static_cast<std::size_t>(images.shape(1)), static_cast<std::size_t>(images.shape(2))};
  check_crop(shape, settings.preparation.crop);
  return {.rows = labels.span().size(),
          .images = images.data(),
          .labels = labels.data(),
          .row_ids = row_ids,
          .image_shape = shape,
          .preparation = settings.preparation,
          .key = key};
}

Fit fit_of(const CudaOutcome& outcome) {
  return {sr::Avg<double>::in_device_memory(outcome.mean_loss),
          sr::Sum<std::int64_t>::in_device_memory(outcome.correct)};
}

}  // namespace

Trainer::Trainer(sr::CudaWorker&, const TrainerSettings& settings) : settings_(settings), still_(sizeof(AugmentKey)) {
  const Architecture architecture = plan(settings.architecture);
  if (settings.preparation.crop != architecture.spec.image_size) {
    throw std::invalid_argument("a trainer: expected crops of the network's " +
                                std::to_string(architecture.spec.image_size) + " pixels, got " +
                                std::to_string(settings.preparation.crop));
  }
  training_network_ = std::make_unique<CudaNetwork>(architecture, math_of(settings.precision));
  evaluation_network_ = std::make_unique<CudaNetwork>(architecture, math_of(settings.precision));
  const AugmentKey still{.is_random = false};
  demos::check_cuda(cudaMemcpy(still_.data(), &still, sizeof still, cudaMemcpyHostToDevice), "cudaMemcpy");
  demos::check_cuda(cudaDeviceSynchronize(), "cudaMemcpy");  // the worker's stream does not wait for the default stream
}

Fit Trainer::loss_and_gradient_cuda(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready, Images images,
                                    Labels labels, RowIds row_ids, Vector statistics, Input input, Vector params,
                                    Vector gradient) {
  return step({worker, comm, ready}, {images, labels, row_ids}, statistics, input, params, gradient);
}

Fit Trainer::device_loss_and_gradient_cuda(sr::CudaWorker& worker, sr::Comm& comm, sr::GradientReady& ready,
                                           DeviceImages images, DeviceIntegers labels, DeviceIntegers row_ids,
                                           Vector statistics, Input input, Vector params, Vector gradient) {
  return step({worker, comm, ready}, {images, labels, row_ids}, statistics, input, params, gradient);
}

Fit Trainer::step(const StepPlace& place, const StepRows& rows, const Vector& statistics, const Input& input,
                  const Vector& params, const Vector& gradient) {
  SumOverRanks sum;
  if (settings_.normalization == Normalization::kSynchronized) {
    sum = [&place](std::span<float> values) { place.comm.all_reduce(values, sr::Reduction::sum); };
  }
  ReadyFrom ready_from;
  // Where normalisation asks all ranks, its sums would wait for the buckets before them, and the rest for its sums.
  if (place.ready.is_used() && settings_.normalization != Normalization::kSynchronized)
    ready_from = [&place](std::size_t first) { place.ready.from(static_cast<std::int64_t>(first)); };
  const CudaBatch batch = batch_of(settings_, rows.images, rows.labels, rows.ids.data(), &input.data()->augment);
  return fit_of(training_network_->loss_and_gradient(handles_of(place.worker), batch, params.data(), statistics.data(),
                                                     settings_.loss, sum, gradient.data(), ready_from));
}

Fit Trainer::evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector statistics, Vector params) {
  const CudaBatch batch = batch_of(settings_, images, labels, nullptr, static_cast<const AugmentKey*>(still_.data()));
  return fit_of(evaluation_network_->evaluate(handles_of(worker), batch, params.data(), statistics.data()));
}

}  // namespace resnet

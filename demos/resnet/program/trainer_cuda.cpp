// The bodies of a Trainer for CUDA devices. They only put work on the worker's stream. The worker captures the work of
// a step once per shape and replays it. So the work may depend only on shapes and addresses.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "demos/common/cuda_check.hpp"
#include "demos/resnet/program/trainer.hpp"

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

Trainer::OwnBytes bytes_of(sr::CudaWorker& worker, const std::string& text) {
  Trainer::OwnBytes bytes(worker, {static_cast<std::int64_t>(text.size())});
  demos::check_cuda(cudaMemcpyAsync(bytes.data(), text.data(), text.size(), cudaMemcpyDefault, worker.stream()),
                    "cudaMemcpyAsync");
  demos::check_cuda(cudaStreamSynchronize(worker.stream()), "cudaStreamSynchronize");
  return bytes;
}

}  // namespace

Trainer::Trainer(sr::CudaWorker&, const TrainerSettings& settings) : settings_(settings), still_(sizeof(AugmentKey)) {
  const Architecture architecture = plan(settings.architecture);
  if (settings.preparation.crop != architecture.spec.image_size) {
    throw std::invalid_argument("a trainer: expected crops of the network's " +
                                std::to_string(architecture.spec.image_size) + " pixels, got " +
                                std::to_string(settings.preparation.crop));
  }
  plans_ = std::make_shared<ConvPlans>(plan_place());
  training_network_ = std::make_unique<CudaNetwork>(architecture, math_of(settings.precision), plans_);
  evaluation_network_ = std::make_unique<CudaNetwork>(architecture, math_of(settings.precision), plans_);
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
  // Synchronized normalisation sums over all ranks in the backward pass. If buckets were averaged at the same time,
  // these sums would wait for the buckets before them, and the rest of the pass would wait for the sums.
  if (place.ready.is_used() && settings_.normalization != Normalization::kSynchronized)
    ready_from = [&place](std::size_t first) { place.ready.from(static_cast<std::int64_t>(first)); };
  const StepInput* const on_device = input.data();
  const CudaBatch batch = batch_of(settings_, rows.images, rows.labels, rows.ids.data(), &on_device->augment);
  const Fit fit =
      fit_of(training_network_->loss_and_gradient(handles_of(place.worker), batch, params.data(), statistics.data(),
                                                  settings_.loss, sum, gradient.data(), ready_from));
  tell_of_own_plans(place.worker);
  return fit;
}

Fit Trainer::evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector statistics, Vector params) {
  const CudaBatch batch = batch_of(settings_, images, labels, nullptr, static_cast<const AugmentKey*>(still_.data()));
  const Fit fit = fit_of(evaluation_network_->evaluate(handles_of(worker), batch, params.data(), statistics.data()));
  tell_of_own_plans(worker);
  return fit;
}

Trainer::OwnBytes Trainer::plans_cuda(sr::CudaWorker& worker) { return bytes_of(worker, plans_->text()); }

Trainer::OwnBytes Trainer::choose_plans_cuda(sr::CudaWorker& worker, std::string_view known, PassRows rows) {
  adopt_plans_cuda(worker, known);
  const CudaHandles handles = handles_of(worker);
  for (const std::int64_t count : rows.training) {
    if (count > 0) training_network_->prepare_training(handles, static_cast<std::size_t>(count));
  }
  for (const std::int64_t count : rows.evaluation) {
    if (count > 0) evaluation_network_->prepare_evaluation(handles, static_cast<std::size_t>(count));
  }
  return bytes_of(worker, plans_->text());
}

void Trainer::adopt_plans_cuda(sr::CudaWorker&, std::string_view plans) {
  const ConvPlans given = ConvPlans::parse(plans);
  if (!(given.place() == plans_->place())) return;
  *plans_ = given;
  agreed_on_ = plans_->size();
}

/// Warns if this rank has chosen plans that the ranks did not agree on. The results are correct, but another run may
/// choose other plans.
void Trainer::tell_of_own_plans(sr::CudaWorker& worker) {
  if (!agreed_on_ || plans_->size() == *agreed_on_) return;
  worker.log(sr::LogLevel::warning, std::to_string(plans_->size() - *agreed_on_) +
                                        " plans of convolutions were chosen by timing on this rank alone: an equal run "
                                        "may differ in its rounding");
  agreed_on_ = plans_->size();
}

}  // namespace resnet

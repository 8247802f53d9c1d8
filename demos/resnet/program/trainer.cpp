#include "demos/resnet/program/trainer.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace resnet {
namespace {

void check_precision(std::string_view device, Precision precision) {
  if (precision == Precision::kFloat32) return;
  throw std::invalid_argument(std::string("--dtype ") + (precision == Precision::kTf32 ? "tf32" : "bfloat16") +
                              ": expected CUDA devices, which have it, got " + std::string(device) +
                              ", which has float32 only");
}

}  // namespace

Trainer::Trainer(sr::CpuWorker& worker, const TrainerSettings& settings) : settings_(settings) {
  check_precision(worker.device(), settings.precision);
  network_.emplace(plan(settings.architecture));
}

Fit Trainer::loss_and_gradient(sr::CpuWorker&, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                               Vector statistics, Input input, Vector params, Vector gradient) {
  return step(comm, {images, labels, row_ids}, statistics, input, params, gradient);
}

Fit Trainer::device_loss_and_gradient(sr::CpuWorker&, sr::Comm& comm, DeviceImages images, DeviceIntegers labels,
                                      DeviceIntegers row_ids, Vector statistics, Input input, Vector params,
                                      Vector gradient) {
  return step(comm, {images, labels, row_ids}, statistics, input, params, gradient);
}

Fit Trainer::step(sr::Comm& comm, const StepRows& rows, const Vector& statistics, const Input& input,
                  const Vector& params, const Vector& gradient) {
  SumOverRanks sum;
  if (settings_.normalization == Normalization::kSynchronized) {
    sum = [&comm](std::span<float> values) { comm.all_reduce(values, sr::Reduction::sum); };
  }
  const Outcome outcome = network_->loss_and_gradient(params.span(), statistics.span(),
                                                      prepare(rows.images, rows.ids.span(), input.value().augment),
                                                      rows.labels.span(), settings_.loss, sum, gradient.span());
  return {outcome.mean_loss, outcome.correct};
}

Fit Trainer::evaluate(sr::CpuWorker&, Images images, Labels labels, Vector statistics, Vector params) {
  const Outcome outcome =
      network_->evaluate(params.span(), statistics.span(), prepare(images, {}, {.is_random = false}), labels.span());
  return {outcome.mean_loss, outcome.correct};
}

/// Prepares images for the network. The result is valid until the next call.
std::span<const float> Trainer::prepare(const sr::ArrayView<const std::uint8_t, 4>& images,
                                        std::span<const std::int64_t> row_ids, const AugmentKey& key) {
  const ImageShape shape{static_cast<std::size_t>(images.shape(1)), static_cast<std::size_t>(images.shape(2))};
  const std::size_t crop = settings_.preparation.crop;
  const std::size_t elements = static_cast<std::size_t>(images.rows()) * crop * crop * 3;
  prepared_.resize(std::max(prepared_.size(), elements));
  const std::span<float> prepared = std::span(prepared_).first(elements);
  prepare_images(shape, settings_.preparation, key, images.span(), row_ids, prepared);
  return prepared;
}

}  // namespace resnet

#include "demos/mnist/trainer.hpp"

#include <stdexcept>
#include <string>

#include "demos/common/nesterov.hpp"
#include "demos/mnist/digits.hpp"

namespace mnist {

template <class T>
Trainer<T>::Trainer(sr::CpuWorker& worker, const demos::ModelSpec& model, std::size_t image_height,
                    std::size_t image_width, demos::MatrixMath math) {
  if (math == demos::MatrixMath::kTf32) {
    throw std::invalid_argument("TF32 (--dtype tf32): expected CUDA devices, which have it, got " +
                                std::string(worker.device()));
  }
  network_.emplace(model, image_height, image_width, kClasses);
}

template <class T>
sr::Avg<double> Trainer<T>::step(sr::CpuWorker&, sr::Comm& comm, Images images, Labels labels, RowIds row_ids,
                                 Vector params, Vector velocity, Vector gradient, Options options) {
  return descend(comm, {images, labels, row_ids}, params, velocity, gradient, *options.data());
}

template <class T>
sr::Avg<double> Trainer<T>::step_on_shards(sr::CpuWorker&, sr::Comm& comm, ImageShard images, LabelShard labels,
                                           RowIdShard row_ids, Vector params, Vector velocity, Vector gradient,
                                           Options options) {
  return descend(comm, {images, labels, row_ids}, params, velocity, gradient, *options.data());
}

template <class T>
Evaluation Trainer<T>::evaluate(sr::CpuWorker&, Images images, Labels labels, Vector params) {
  const demos::Outcome outcome = network_->evaluate(params.span(), images, labels);
  return {outcome.mean_loss, outcome.correct};
}

template <class T>
sr::Avg<double> Trainer<T>::descend(sr::Comm& comm, const Batch& batch, Vector params, Vector velocity, Vector gradient,
                                    const StepOptions& options) {
  const demos::Outcome outcome = network_->loss_and_gradient(params.span(), batch.images, batch.labels, batch.row_ids,
                                                             options.dropout, gradient.span());
  comm.avg(gradient);  // weighted by rows: exactly the gradient of the whole batch
  demos::nesterov_update<T>(params, velocity, gradient.span(), static_cast<T>(options.learning_rate),
                            static_cast<T>(options.momentum));
  return outcome.mean_loss;
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace mnist

#include "demos/mnist/trainer.hpp"

#include <stdexcept>
#include <string>

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
sr::Avg<double> Trainer<T>::loss_and_gradient(sr::CpuWorker&, Images images, Labels labels, RowIds row_ids,
                                              Dropout dropout, Vector params, Vector gradient) {
  return network_->loss_and_gradient(params.span(), images, labels, row_ids, dropout.value(), gradient.span())
      .mean_loss;
}

template <class T>
sr::Avg<double> Trainer<T>::loss_and_gradient_of_shards(sr::CpuWorker&, ImageShard images, LabelShard labels,
                                                        RowIdShard row_ids, Dropout dropout, Vector params,
                                                        Vector gradient) {
  return network_->loss_and_gradient(params.span(), images, labels, row_ids, dropout.value(), gradient.span())
      .mean_loss;
}

template <class T>
Evaluation Trainer<T>::evaluate(sr::CpuWorker&, Images images, Labels labels, Vector params) {
  const demos::Outcome outcome = network_->evaluate(params.span(), images, labels);
  return {outcome.mean_loss, outcome.correct};
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace mnist

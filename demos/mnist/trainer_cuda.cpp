// The bodies of a Trainer for CUDA devices. They only put work on the worker's stream. The worker captures the work of
// a step once per shape and replays it. So the work may depend only on shapes and addresses.

#include "demos/mnist/digits.hpp"
#include "demos/mnist/trainer.hpp"

namespace mnist {
namespace {

template <class T>
demos::CudaHandles handles_of(const sr::CudaWorker& worker, const demos::CudaNetwork<T>& network) {
  return {worker.stream(), worker.cublas(), network.needs_cudnn() ? worker.cudnn() : nullptr};
}

}  // namespace

template <class T>
Trainer<T>::Trainer(sr::CudaWorker&, const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
                    demos::MatrixMath math) {
  cuda_network_.emplace(model, image_height, image_width, kClasses, math);
}

template <class T>
sr::Avg<double> Trainer<T>::loss_and_gradient_cuda(sr::CudaWorker& worker, Images images, Labels labels, RowIds row_ids,
                                                   Dropout dropout, Vector params, Vector gradient) {
  return loss_and_gradient_of_rows(worker, {labels.span().size(), images.data(), labels.data(), row_ids.data()},
                                   dropout, params, gradient);
}

template <class T>
sr::Avg<double> Trainer<T>::loss_and_gradient_of_shards_cuda(sr::CudaWorker& worker, ImageShard images,
                                                             LabelShard labels, RowIdShard row_ids, Dropout dropout,
                                                             Vector params, Vector gradient) {
  return loss_and_gradient_of_rows(worker, {labels.span().size(), images.data(), labels.data(), row_ids.data()},
                                   dropout, params, gradient);
}

template <class T>
Evaluation Trainer<T>::evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector params) {
  const demos::CudaRows<T> rows{labels.span().size(), images.data(), labels.data()};
  const demos::CudaOutcome outcome = cuda_network_->evaluate(handles_of(worker, *cuda_network_), rows, params.data());
  return {sr::Avg<double>::in_device_memory(outcome.mean_loss),
          sr::Sum<std::int64_t>::in_device_memory(outcome.correct)};
}

template <class T>
sr::Avg<double> Trainer<T>::loss_and_gradient_of_rows(sr::CudaWorker& worker, const demos::CudaRows<T>& rows,
                                                      Dropout dropout, Vector params, Vector gradient) {
  const demos::CudaOutcome outcome = cuda_network_->loss_and_gradient(handles_of(worker, *cuda_network_), rows,
                                                                      params.data(), dropout.data(), gradient.data());
  return sr::Avg<double>::in_device_memory(outcome.mean_loss);
}

#define MNIST_INSTANTIATE(T)                                                                                           \
  template Trainer<T>::Trainer(sr::CudaWorker&, const demos::ModelSpec&, std::size_t, std::size_t, demos::MatrixMath); \
  template sr::Avg<double> Trainer<T>::loss_and_gradient_cuda(sr::CudaWorker&, Images, Labels, RowIds, Dropout,        \
                                                              Vector, Vector);                                         \
  template sr::Avg<double> Trainer<T>::loss_and_gradient_of_shards_cuda(sr::CudaWorker&, ImageShard, LabelShard,       \
                                                                        RowIdShard, Dropout, Vector, Vector);          \
  template Evaluation Trainer<T>::evaluate_cuda(sr::CudaWorker&, Images, Labels, Vector);
MNIST_INSTANTIATE(float)
MNIST_INSTANTIATE(double)
#undef MNIST_INSTANTIATE

}  // namespace mnist

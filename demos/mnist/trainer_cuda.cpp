// The bodies of a Trainer for CUDA devices. All they do is put work on the worker's stream: steps are captured once per
// shape and replayed, so that nothing here may depend on anything but shapes and addresses.

#include "demos/common/cuda_kernels.hpp"
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
sr::Avg<double> Trainer<T>::step_cuda(sr::CudaWorker& worker, sr::Comm& comm, Images images, Labels labels,
                                      RowIds row_ids, Vector params, Vector velocity, Vector gradient,
                                      Options options) {
  return descend(worker, comm, {images, labels, row_ids}, params, velocity, gradient, options.data());
}

template <class T>
sr::Avg<double> Trainer<T>::step_on_shards_cuda(sr::CudaWorker& worker, sr::Comm& comm, ImageShard images,
                                                LabelShard labels, RowIdShard row_ids, Vector params, Vector velocity,
                                                Vector gradient, Options options) {
  return descend(worker, comm, {images, labels, row_ids}, params, velocity, gradient, options.data());
}

template <class T>
Evaluation Trainer<T>::evaluate_cuda(sr::CudaWorker& worker, Images images, Labels labels, Vector params) {
  const demos::CudaRows<T> rows{labels.span().size(), images.data(), labels.data()};
  const demos::CudaOutcome outcome = cuda_network_->evaluate(handles_of(worker, *cuda_network_), rows, params.data());
  return {sr::Avg<double>::in_device_memory(outcome.mean_loss),
          sr::Sum<std::int64_t>::in_device_memory(outcome.correct)};
}

template <class T>
sr::Avg<double> Trainer<T>::descend(sr::CudaWorker& worker, sr::Comm& comm, const Batch& batch, Vector params,
                                    Vector velocity, Vector gradient, const StepOptions* options) {
  const demos::CudaRows<T> rows{batch.labels.size(), batch.images.data(), batch.labels.data(), batch.row_ids.data()};
  const demos::CudaOutcome outcome = cuda_network_->loss_and_gradient(
      handles_of(worker, *cuda_network_), rows, params.data(), &options->dropout, gradient.data());
  comm.avg(gradient);  // weighted by rows: exactly the gradient of the whole batch
  demos::cuda::nesterov_update(params.span().size(), params.data(), velocity.data(), gradient.data(),
                               &options->learning_rate, &options->momentum, worker.stream());
  return sr::Avg<double>::in_device_memory(outcome.mean_loss);
}

#define MNIST_INSTANTIATE(T)                                                                                           \
  template Trainer<T>::Trainer(sr::CudaWorker&, const demos::ModelSpec&, std::size_t, std::size_t, demos::MatrixMath); \
  template sr::Avg<double> Trainer<T>::step_cuda(sr::CudaWorker&, sr::Comm&, Images, Labels, RowIds, Vector, Vector,   \
                                                 Vector, Options);                                                     \
  template sr::Avg<double> Trainer<T>::step_on_shards_cuda(sr::CudaWorker&, sr::Comm&, ImageShard, LabelShard,         \
                                                           RowIdShard, Vector, Vector, Vector, Options);               \
  template Evaluation Trainer<T>::evaluate_cuda(sr::CudaWorker&, Images, Labels, Vector);
MNIST_INSTANTIATE(float)
MNIST_INSTANTIATE(double)
#undef MNIST_INSTANTIATE

}  // namespace mnist

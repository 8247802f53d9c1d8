#include "demos/mnist/serial_cuda_trainer.hpp"

#include <algorithm>
#include <numeric>

#include "demos/common/cuda_check.hpp"
#include "demos/common/cuda_kernels.hpp"

namespace mnist {
namespace {

using demos::check_cuda;

constexpr int kGpu = 0;
constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* pinned(std::size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return memory;
}

demos::CudaStream make_stream() {
  check_cuda(cudaSetDevice(kGpu), "cudaSetDevice");
  return demos::make_cuda_stream();
}

}  // namespace

void FreePinned::operator()(void* memory) const noexcept { static_cast<void>(cudaFreeHost(memory)); }

template <class T>
DeviceArray<T>::DeviceArray(const std::vector<T>& values) : buffer_(values.size() * sizeof(T)) {
  check_cuda(cudaMemcpy(buffer_.data(), values.data(), buffer_.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  // Streams made by make_cuda_stream do not wait for the default stream.
  check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

template <class T>
Trainer<T>::Trainer(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
                    demos::MatrixMath math)
    : stream_(make_stream()),
      cublas_(demos::make_cublas(stream_.get())),
      network_(model, image_height, image_width, kClasses, math),
      pixels_(image_height * image_width),
      result_(static_cast<Evaluation*>(pinned(sizeof(Evaluation)))) {
  if (network_.needs_cudnn()) cudnn_ = demos::make_cudnn(stream_.get());
}

template <class T>
double Trainer<T>::step(const Rows<T>& training, std::span<const std::int64_t> batch, Vector& params, Vector& velocity,
                        Vector& gradient, const StepOptions& options) {
  const Block device = bring(training, batch, options);
  const demos::CudaOutcome outcome =
      network_.loss_and_gradient(handles(), {batch.size(), device.images, device.labels, device.ids}, params.data(),
                                 &device.options->dropout, gradient.data());
  demos::cuda::nesterov_update(network_.parameter_count(), params.data(), velocity.data(), gradient.data(),
                               &device.options->learning_rate, &device.options->momentum, stream_.get());
  return read(outcome).loss;
}

template <class T>
Evaluation Trainer<T>::evaluate(const Rows<T>& rows, const Vector& params, std::size_t slices) {
  return evaluate_in_slices(rows.labels.size(), slices, [&](std::size_t first, std::size_t count) {
    const Layout at = layout(count);
    const Block host = reserve_staging(at);
    std::iota(host.ids, host.ids + count, static_cast<std::int64_t>(first));
    rows.pick({host.ids, count}, host.images, host.labels);
    to_device(at.end);
    const Block device = block_in(batch_.data(), at);
    return read(network_.evaluate(handles(), {count, device.images, device.labels}, params.data()));
  });
}

/// Puts a batch into the memory of the GPU. The rows come from the copy that the GPU holds (see hold), or else from
/// ordinary memory.
template <class T>
typename Trainer<T>::Block Trainer<T>::bring(const Rows<T>& training, std::span<const std::int64_t> batch,
                                             const StepOptions& options) {
  const Layout at = layout(batch.size());
  const Block host = reserve_staging(at);
  const Block device = block_in(batch_.data(), at);
  *host.options = options;
  std::copy(batch.begin(), batch.end(), host.ids);
  if (!held_) {
    training.pick(batch, host.images, host.labels);
    to_device(at.end);
    return device;
  }
  to_device(at.images);
  demos::cuda::pick_rows(batch.size(), pixels_, device.ids, held_->images.data(), device.images, stream_.get());
  demos::cuda::pick_rows(batch.size(), 1, device.ids, held_->labels.data(), device.labels, stream_.get());
  return device;
}

template <class T>
typename Trainer<T>::Layout Trainer<T>::layout(std::size_t rows) const {
  const std::size_t ids = aligned(sizeof(StepOptions));
  const std::size_t images = ids + aligned(rows * sizeof(std::int64_t));
  const std::size_t labels = images + aligned(rows * pixels_ * sizeof(T));
  return {ids, images, labels, labels + rows};
}

template <class T>
typename Trainer<T>::Block Trainer<T>::block_in(void* memory, const Layout& layout) {
  auto* const bytes = static_cast<std::byte*>(memory);
  return {reinterpret_cast<StepOptions*>(bytes), reinterpret_cast<std::int64_t*>(bytes + layout.ids),
          reinterpret_cast<T*>(bytes + layout.images), reinterpret_cast<std::uint8_t*>(bytes + layout.labels)};
}

/// Makes room for a batch in pinned memory and on the GPU. This is safe because the GPU has finished all earlier work.
template <class T>
typename Trainer<T>::Block Trainer<T>::reserve_staging(const Layout& layout) {
  if (layout.end > batch_.bytes()) {
    staging_.reset(pinned(layout.end));
    batch_ = demos::DeviceBuffer(layout.end);
  }
  return block_in(staging_.get(), layout);
}

template <class T>
void Trainer<T>::to_device(std::size_t bytes) const {
  check_cuda(cudaMemcpyAsync(batch_.data(), staging_.get(), bytes, cudaMemcpyHostToDevice, stream_.get()),
             "cudaMemcpyAsync");
}

template <class T>
Evaluation Trainer<T>::read(const demos::CudaOutcome& outcome) const {
  check_cuda(cudaMemcpyAsync(&result_->loss, outcome.mean_loss, sizeof(double), cudaMemcpyDeviceToHost, stream_.get()),
             "cudaMemcpyAsync");
  check_cuda(
      cudaMemcpyAsync(&result_->correct, outcome.correct, sizeof(std::int64_t), cudaMemcpyDeviceToHost, stream_.get()),
      "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  return *result_;
}

template class DeviceArray<float>;
template class DeviceArray<double>;
template class DeviceArray<std::uint8_t>;
template class Trainer<float>;
template class Trainer<double>;

}  // namespace mnist

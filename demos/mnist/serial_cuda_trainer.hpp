#pragma once

// The twin of serial_trainer.hpp on one GPU: device memory, pinned memory, a stream, the handles of the libraries, copies
// and waiting by hand. Nothing is captured into a graph, and nothing is copied while the GPU computes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_network.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/mnist/serial_rows.hpp"
#include "demos/mnist/training.hpp"

namespace mnist {

/// Values in the memory of the GPU.
template <class T>
class DeviceArray {
 public:
  /// Throws std::runtime_error where there is no GPU or not enough memory.
  explicit DeviceArray(const std::vector<T>& values);
  T* data() const { return static_cast<T*>(buffer_.data()); }

 private:
  demos::DeviceBuffer buffer_;
};

/// The twin of Shards: rows that the GPU holds already.
template <class T>
struct DeviceRows {
  DeviceArray<T> images;
  DeviceArray<std::uint8_t> labels;

  explicit DeviceRows(const Rows<T>& rows) : images(rows.images), labels(rows.labels) {}
};

/// How well the parameters fit some rows.
struct Evaluation {
  double loss = 0;
  std::int64_t correct = 0;
};

struct FreePinned {
  void operator()(void* memory) const noexcept;
};

/// The network, with all that it needs of the first GPU. T is float or double. Members wait until the GPU is done.
template <class T>
class Trainer {
 public:
  /// Throws std::runtime_error where there is no GPU, std::invalid_argument for a model that cannot be.
  Trainer(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width, demos::MatrixMath math);

  /// One step of Nesterov's method on these rows of `training`, whose numbers key dropout masks. Returns the mean of
  /// their losses.
  double step(const Rows<T>& training, std::span<const std::int64_t> batch, const DeviceArray<T>& params,
              const DeviceArray<T>& velocity, const DeviceArray<T>& gradient, const StepOptions& options);

  /// The same on rows that the GPU holds already.
  double step_on_device(const DeviceRows<T>& training, std::span<const std::int64_t> batch,
                        const DeviceArray<T>& params, const DeviceArray<T>& velocity, const DeviceArray<T>& gradient,
                        const StepOptions& options);

  /// Mean loss and number of correct rows, without dropout, in as many passes.
  Evaluation evaluate(const Rows<T>& rows, const DeviceArray<T>& params, std::size_t slices);

 private:
  /// A batch in one block of memory, so that it takes one copy; images and labels come last.
  struct Block {
    StepOptions* options;
    std::int64_t* ids;
    T* images;
    std::uint8_t* labels;
  };
  /// Where the parts of a block are, in bytes.
  struct Layout {
    std::size_t ids;
    std::size_t images;
    std::size_t labels;
    std::size_t end;
  };
  Layout layout(std::size_t rows) const;
  Block reserve_staging(const Layout& layout);
  static Block block_in(void* memory, const Layout& layout);
  void to_device(std::size_t bytes) const;
  demos::CudaHandles handles() const { return {stream_.get(), cublas_.get(), cudnn_.get()}; }
  double descend(std::size_t rows, const Block& batch, const DeviceArray<T>& params, const DeviceArray<T>& velocity,
                 const DeviceArray<T>& gradient);
  Evaluation read(const demos::CudaOutcome& outcome) const;

  demos::CudaStream stream_;
  demos::CublasHandle cublas_;
  demos::CudnnHandle cudnn_;  // where the model needs it
  demos::CudaNetwork<T> network_;
  std::size_t pixels_;
  std::unique_ptr<Evaluation, FreePinned> result_;
  std::unique_ptr<void, FreePinned> staging_;  // a block in pinned memory
  demos::DeviceBuffer batch_;                  // and its copy
};

}  // namespace mnist

#pragma once

// The twin of serial_trainer.hpp on one GPU. It manages by hand the device memory, pinned memory, a stream, the handles
// of the libraries, copies and waits. It captures no CUDA graph, and copies nothing while the GPU computes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_network.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/mnist/serial_rows.hpp"

namespace mnist {

/// Values in the memory of the GPU.
template <class T>
class DeviceArray {
 public:
  /// Copies `values` to the GPU, and waits for the copy. Throws std::runtime_error if there is no GPU or not enough
  /// memory.
  explicit DeviceArray(const std::vector<T>& values);
  T* data() const { return static_cast<T*>(buffer_.data()); }

 private:
  demos::DeviceBuffer buffer_;
};

/// The twin of Shards: rows in the memory of the GPU.
template <class T>
struct DeviceRows {
  DeviceArray<T> images;
  DeviceArray<std::uint8_t> labels;

  explicit DeviceRows(const Rows<T>& rows) : images(rows.images), labels(rows.labels) {}
};

struct FreePinned {
  void operator()(void* memory) const noexcept;
};

/// The network, with everything that it needs on the first GPU. T is float or double. `step` and `evaluate` wait until
/// the GPU has finished.
template <class T>
class Trainer {
 public:
  using Vector = DeviceArray<T>;  // [parameters]
  static constexpr const char* kDevice = "cuda0";

  /// Throws std::runtime_error if there is no GPU, std::invalid_argument if the model is not possible.
  Trainer(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width, demos::MatrixMath math);

  /// Copies these rows to the memory of the GPU. From then on, steps pick their rows from this copy.
  void hold(const Rows<T>& training) { held_.emplace(training); }

  /// One step of Nesterov's method on the rows of `training` that `batch` lists. The row numbers also determine the
  /// dropout masks. Returns the mean loss of these rows.
  double step(const Rows<T>& training, std::span<const std::int64_t> batch, Vector& params, Vector& velocity,
              Vector& gradient, const StepOptions& options);

  /// Mean loss and number of correct rows, without dropout, computed in `slices` passes.
  Evaluation evaluate(const Rows<T>& rows, const Vector& params, std::size_t slices);

 private:
  /// A batch in one block of memory, so that a single copy moves it. Images and labels come last, because the copy
  /// omits them when the GPU holds the rows.
  struct Block {
    StepOptions* options;
    std::int64_t* ids;
    T* images;
    std::uint8_t* labels;
  };
  /// The places of the parts in a block, in bytes from its start.
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
  Block bring(const Rows<T>& training, std::span<const std::int64_t> batch, const StepOptions& options);
  Evaluation read(const demos::CudaOutcome& outcome) const;

  demos::CudaStream stream_;
  demos::CublasHandle cublas_;
  demos::CudnnHandle cudnn_;  // null unless the model needs it
  demos::CudaNetwork<T> network_;
  std::size_t pixels_;
  std::optional<DeviceRows<T>> held_;
  std::unique_ptr<Evaluation, FreePinned> result_;
  std::unique_ptr<void, FreePinned> staging_;  // a block in pinned memory
  demos::DeviceBuffer batch_;                  // its copy on the GPU
};

}  // namespace mnist

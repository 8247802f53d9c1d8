#pragma once

// demos::Network on a CUDA device, with the same layout of parameters, the same loss and the same dropout masks. This
// header needs no CUDA header.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "demos/common/cuda_convolution.hpp"
#include "demos/common/cuda_gemm.hpp"
#include "demos/common/cuda_image_kernels.hpp"
#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/common/model.hpp"
#include "demos/common/network.hpp"

namespace demos {

/// Some rows in device memory.
template <typename T>
struct CudaRows {
  std::size_t count;
  const T* images;                        // [count, image_height, image_width]
  const std::uint8_t* labels;             // [count]
  const std::int64_t* row_ids = nullptr;  // [count], see Network::loss_and_gradient
};

/// An Outcome in device memory.
struct CudaOutcome {
  const double* mean_loss;
  const std::int64_t* correct;
};

/// T is float or double. The object holds the layout and a workspace, but no parameters. The workspace is on the device
/// that was current when the object was made. Members put work on the stream and do not wait. For the same addresses
/// and number of rows they put the same work there, so the work can be captured into a CUDA graph. Such a graph is
/// valid as long as the object exists. The workspace grows only when a call has more rows than all calls before, and
/// then the call may wait for the device. One object serves one stream. Labels that are not below `classes` make the
/// loss NaN. Members throw std::runtime_error if CUDA fails.
template <typename T>
class CudaNetwork {
 public:
  /// Throws std::invalid_argument if a size is zero or too large, std::runtime_error if the model needs cuDNN and the
  /// program was built without it.
  CudaNetwork(const ModelSpec& spec, std::size_t image_height, std::size_t image_width, std::size_t classes,
              MatrixMath math = MatrixMath::kFull);
  CudaNetwork(const CudaNetwork&) = delete;
  CudaNetwork& operator=(const CudaNetwork&) = delete;

  std::size_t parameter_count() const { return plan_.parameter_count; }
  bool needs_cudnn() const { return needs_cudnn_; }

  /// See Network::loss_and_gradient. `key` determines the dropout masks and is in device memory. The outcome is valid
  /// until the next call.
  CudaOutcome loss_and_gradient(const CudaHandles& handles, const CudaRows<T>& rows, const T* params,
                                const StepKey* key, T* gradient);

  /// Mean loss and number of correct rows, without dropout, computed some thousand rows at a time. The outcome is valid
  /// until the next call.
  CudaOutcome evaluate(const CudaHandles& handles, const CudaRows<T>& rows, const T* params);

 private:
  /// A dense layer, with the dropout that follows it.
  struct Dense {
    DenseLayer layer;
    std::optional<DropoutLayer> dropout;
  };
  struct Convolution {
    ConvLayer layer;
    std::unique_ptr<CudaConvolution<T>> convolution;
    DeviceBuffer filter;   // the weights in cuDNN's order
    DeviceBuffer dfilter;  // their gradient
  };
  struct Pool {
    PoolLayer layer;
    cuda::Channels channels_out;
  };
  /// Layers that are computed together. `delta` is first the gradient of the loss with respect to the output, and then
  /// with respect to the sums before the bias.
  struct Stage {
    std::variant<Dense, Convolution, Pool, DropoutLayer> what;
    std::size_t elements;  // of the output, per row
    T* output = nullptr;
    T* delta = nullptr;
  };
  /// One call's arguments.
  struct Pass {
    const CudaHandles& handles;
    std::size_t rows;
    const T* images;
    const std::int64_t* row_ids;
    const StepKey* key;  // null: no dropout
    const T* params;
    T* gradient;
  };
  enum class Phase { kTraining, kInference };

  void add_stage(const Layer& layer);
  void reserve(const CudaHandles& handles, std::size_t rows, Phase phase);
  cuda::DropoutMask mask(const Pass& pass, const DropoutLayer& layer) const;
  const T* input(const Pass& pass, std::size_t stage) const;

  void forward(const Pass& pass);
  enum class Bias : std::uint8_t { left_out, added };
  void forward(const Pass& pass, Dense& dense, const T* x, T* y, Bias bias);
  void forward(const Pass& pass, Convolution& convolution, const T* x, T* y);

  void backward(const Pass& pass);
  /// Says whether dx is already computed, or still has to be computed.
  enum class Dx : std::uint8_t { wanted, computed };
  void backward(const Pass& pass, const Dense& dense, const T* x, const T* dy, T* dx, Dx is);
  void backward(const Pass& pass, Convolution& convolution, const T* x, const T* dy, T* dx);
  void before_bias(const Pass& pass, Stage& stage);
  bool fuses_head(const Pass& pass) const { return can_fuse_head_ && pass.gradient != nullptr; }
  void train_head(const Pass& pass, const std::uint8_t* labels, const cuda::LossPlace& place);
  void loss(const Pass& pass, const std::uint8_t* labels, const cuda::LossPlace& place);
  CudaOutcome no_rows(const CudaHandles& handles);

  LayerPlan plan_;
  std::size_t image_elements_;
  std::size_t classes_;
  MatrixMath math_;
  bool needs_cudnn_ = false;
  std::vector<Stage> stages_;
  std::size_t first_trained_ = 0;  // stages before this one have no parameters, so their gradient is not computed

  bool can_fuse_head_ = false;  // whether one kernel can compute the last two stages in training

  CudaSideStream side_;
  DeviceBuffer fixed_;  // its size does not depend on rows; it holds these three:
  double* mean_loss_ = nullptr;
  std::int64_t* correct_ = nullptr;
  cuda::Partials<T> partials_{};
  GrowingDeviceMemory workspace_;  // outputs and deltas
  std::size_t workspace_rows_ = 0;
  bool workspace_trains_ = false;
  GrowingDeviceMemory cudnn_workspace_;
  void* cudnn_memory_ = nullptr;
};

}  // namespace demos

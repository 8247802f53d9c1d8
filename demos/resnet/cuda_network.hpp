#pragma once

// A residual network on a CUDA device: convolutions through cuDNN, but for some that are products of ours (see
// cuda_product_kernels.hpp and cuda_stem_kernels.hpp), the last layer through cuBLAS, fused kernels for what lies between.
// Needs no CUDA header: streams and handles are named by the types that the CUDA headers give them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "demos/common/cuda_memory.hpp"
#include "demos/resnet/architecture.hpp"
#include "demos/resnet/conv_plans.hpp"
#include "demos/resnet/cuda_convolution.hpp"
#include "demos/resnet/cuda_edge_kernels.hpp"
#include "demos/resnet/cuda_image_kernels.hpp"
#include "demos/resnet/cuda_norm_kernels.hpp"
#include "demos/resnet/cuda_pool_kernels.hpp"
#include "demos/resnet/cuda_product_kernels.hpp"
#include "demos/resnet/cuda_stem_kernels.hpp"
#include "demos/resnet/images.hpp"
#include "demos/resnet/network.hpp"

struct cublasContext;

namespace resnet {

/// Where a network's work goes. The handles are bound to the stream.
struct CudaHandles {
  CUstream_st* stream;
  cublasContext* cublas;
  cudnnContext* cudnn;
};

/// Some rows in device memory: stored images, or such as are normalised already.
struct CudaBatch {
  std::size_t rows;
  const std::uint8_t* images;   // [rows, height, width, 3]; null: see `normalised`
  const std::int64_t* labels;   // [rows]
  const std::int64_t* row_ids;  // [rows], of the rows in the whole data set
  ImageShape image_shape;
  Preparation preparation;
  const AugmentKey* key;              // in device memory
  const float* normalised = nullptr;  // [rows, image_size, image_size, 3]
};

/// An Outcome in device memory.
struct CudaOutcome {
  const double* mean_loss;
  const std::int64_t* correct;
};

/// Params, gradient [parameter_count] and statistics [statistics_count] are float32, as the architecture lays them out; what
/// lies between the gradient's arrays stays as it is, or becomes 0 without rows. The object holds a workspace in memory of
/// the device that was current when it was made, no parameters. Members put work on the stream, and the same work for the
/// same addresses and number of rows, so that it can be captured into a CUDA graph: what was captured stays valid as long
/// as the object. The first call with a number of rows, or with more than any before, makes plans and memory and waits for
/// the device. One object serves one stream. Members throw std::runtime_error where CUDA or cuDNN fails, and with the number
/// of bytes wanted where there is not enough memory.
class CudaNetwork {
 public:
  /// With plans of its own, chosen by timing when they are first wanted.
  CudaNetwork(const Architecture& architecture, CudaMath math);
  /// With the plans of a list, which others may share. A plan that is not in it is chosen by timing, and added.
  CudaNetwork(const Architecture& architecture, CudaMath math, std::shared_ptr<ConvPlans> plans);
  CudaNetwork(const CudaNetwork&) = delete;
  CudaNetwork& operator=(const CudaNetwork&) = delete;

  /// See CpuNetwork::loss_and_gradient. The outcome is valid until the next call. Labels
  /// out of range make the loss NaN. `ready`: told after the dense layer and after each block, also without rows if the
  /// ranks normalise together; where it was not told, all of the gradient is final on return.
  CudaOutcome loss_and_gradient(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                                float* statistics, const LossOptions& options, const SumOverRanks& sum, float* gradient,
                                const ReadyFrom& ready = {});

  /// See CpuNetwork::evaluate. Valid until the next call.
  CudaOutcome evaluate(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                       const float* statistics);

  /// The logits [rows, classes] in float32, normalised by the running statistics. Valid until the next call.
  const float* logits(const CudaHandles& handles, const CudaBatch& batch, const float* params, const float* statistics);

  /// Makes the memory and the plans now that the first call with so many rows would make, and waits for the device.
  void prepare_training(const CudaHandles& handles, std::size_t rows) { reserve(handles, rows, Phase::kTraining); }
  void prepare_evaluation(const CudaHandles& handles, std::size_t rows) { reserve(handles, rows, Phase::kInference); }

  /// What those convolutions of a step that are cuDNN's take on their own, in microseconds by ConvPass, as measured when
  /// their plans were chosen, for the number of rows of the last call, which has to be of loss_and_gradient.
  std::array<double, kConvPasses> convolution_microseconds() const;

 private:
  enum class Phase { kTraining, kInference };

  /// A unit's arrays of activations and its plans, for the current number of rows.
  struct Unit {
    void* sums = nullptr;                       // of the convolution: what is normalised
    void* output = nullptr;                     // behind the ReLU, where it has one of its own
    float* norm = nullptr;                      // [7, channels]: see place_of
    const ConvPlan* forward = nullptr;          // null: see takes_statistics
    const ConvPlan* backward_input = nullptr;   // null: see adds_at_end
    const ConvPlan* backward_filter = nullptr;  // null: see has_stem_product
  };
  /// What one call works with.
  struct Pass {
    const CudaHandles& handles;
    const CudaBatch& batch;
    const float* params;
    float* statistics;
    float* gradient = nullptr;
    const SumOverRanks* sum = nullptr;  // null, or empty: this rank's rows only
    Phase phase = Phase::kInference;
    const ReadyFrom* ready = nullptr;  // null, or empty: nobody wants to know
    bool tells() const { return ready != nullptr && *ready; }
    bool synchronises() const { return sum != nullptr && *sum; }
  };
  /// What arrives at a block's end: the sum of two gradients of its output.
  struct Arriving {
    void* first;
    void* second;  // may be null, where `unit` is none
    // A unit of which `first` is the gradient of the sums, yet to be led back to the unit's input: see adds_at_end.
    std::optional<std::size_t> unit = std::nullopt;
  };
  /// Arrays for gradients of activations, large enough for some blocks, which take turns.
  using GradientArrays = std::array<void*, 3>;

  void reserve(const Pass& pass) { reserve(pass.handles, pass.batch.rows, pass.phase); }
  void reserve(const CudaHandles& handles, std::size_t rows, Phase phase);
  void lay_out(std::size_t rows, Phase phase);
  std::size_t place_training(std::size_t rows, std::byte* base);
  std::size_t place_gradients(std::size_t rows, std::byte* base, const std::vector<std::size_t>& begins);
  std::size_t place_inference(std::size_t rows, std::byte* base);
  void make_plans(const CudaHandles& handles, std::size_t rows, Phase phase);
  const ConvPlan& plan_of(const CudaHandles& handles, const PlanKey& key,
                          std::optional<demos::DeviceBuffer>& workspace);
  ConvPlan stored_plan(const CudaHandles& handles, const PlanKey& key, const PlanChoice& choice);
  std::size_t largest_elements() const;
  std::size_t gradient_elements(std::size_t block) const;

  cuda::NormPlace place_of(const Pass& pass, std::size_t unit) const;
  cuda::NormShape norm_shape(const Pass& pass, std::size_t unit) const;
  cuda::PoolShape pool_shape(const Pass& pass) const;
  cuda::NormSide side_of(const Pass& pass, std::size_t unit, void* gradient) const;
  static cuda::Ranks ranks_of(const Pass& pass) { return pass.synchronises() ? cuda::Ranks::kAll : cuda::Ranks::kOwn; }
  void* filter_of(const Pass& pass, std::size_t unit) const;
  bool has_stem_product() const;
  bool takes_statistics(std::size_t unit, Phase phase) const;
  bool adds_at_end(std::size_t block) const;

  void convert_filters(const Pass& pass);
  void multiply_with_statistics(const Pass& pass, std::size_t unit, const void* input);
  void convolve(const Pass& pass, std::size_t unit, const void* input);
  void normalise(const Pass& pass, std::size_t unit);
  void forward(const Pass& pass);
  void forward_images(const Pass& pass);
  const void* forward_block(const Pass& pass, std::size_t block, const void* input);
  void forward_head(const Pass& pass, const void* last);
  CudaOutcome outcome(const Pass& pass, const LossOptions& options, void* dlogits);

  void backward(const Pass& pass);
  void backward_head(const Pass& pass, void* gradient);
  Arriving backward_block(const Pass& pass, std::size_t block, const Arriving& arriving);
  void backward_end(const Pass& pass, std::size_t block, const Arriving& arriving, void* passed, void* flowing);
  void backward_images(const Pass& pass, const Arriving& arriving);
  std::size_t first_chunk(std::size_t unit) const;
  void widen_gradient(const Pass& pass, std::size_t first_chunk, std::size_t end_chunk);
  void sum_over_ranks(const Pass& pass, std::size_t unit, const cuda::NormSide& side);
  void backward_filter(const Pass& pass, std::size_t unit, const void* input, void* gradient);
  void backward_input(const Pass& pass, std::size_t unit, void* gradient, void* result);
  void backward_units(const Pass& pass, std::size_t block, void*& flowing, const void* kept);
  void* free_gradient(std::size_t block, const void* one, const void* other) const;
  const void* input_of_block(std::size_t block) const;

  void multiply(const CudaHandles& handles, bool transpose_a, bool transpose_b, std::array<std::size_t, 3> sizes,
                const void* a, std::size_t stride_a, const void* b, std::size_t stride_b, void* c, bool is_float) const;

  Architecture architecture_;
  CudaMath math_;
  std::optional<cuda::ProductDevice> product_device_;  // none: all convolutions are cuDNN's
  std::vector<Unit> units_;
  std::vector<void*> block_outputs_;
  std::vector<std::uint8_t*> passes_;  // by block: what of its output's gradient passes the ReLU; null for inference

  demos::DeviceBuffer fixed_;        // of a size that does not depend on rows:
  void* narrow_params_ = nullptr;    // bfloat16, as params
  void* narrow_gradient_ = nullptr;  // bfloat16, as gradient
  void* folded_filter_ = nullptr;    // the first filters
  void* filter_scratch_ = nullptr;   // as large as the largest filters
  float* stem_scratch_ = nullptr;    // for stem_filter_gradient
  cuda::SumPlace sum_place_{};
  float* deviations_ = nullptr;
  const cuda::Chunk* chunks_ = nullptr;  // the last one is the dense layer's
  std::size_t chunk_count_ = 0;
  std::size_t filter_chunks_ = 0;
  double* mean_loss_ = nullptr;
  std::int64_t* correct_ = nullptr;

  demos::GrowingDeviceMemory memory_;  // for the current rows and phase:
  std::size_t rows_ = 0;
  Phase phase_ = Phase::kInference;
  bool is_laid_out_ = false;
  void* image_ = nullptr;  // folded
  void* pooled_ = nullptr;
  std::uint8_t* which_ = nullptr;
  void* features_ = nullptr;
  float* logits_ = nullptr;
  void* dlogits_ = nullptr;
  void* dfeatures_ = nullptr;
  cuda::LossPlace loss_place_{};
  std::vector<GradientArrays> gradients_;  // by block
  std::array<void*, 2> tuning_{};          // as large as the largest arrays

  std::shared_ptr<ConvPlans> choices_;
  std::map<PlanKey, ConvPlan> plans_;
  demos::GrowingDeviceMemory plan_memory_;
  void* plan_workspace_ = nullptr;
};

}  // namespace resnet

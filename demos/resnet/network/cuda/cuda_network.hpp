#pragma once

// A residual network on a CUDA device. cuDNN computes most convolutions, and kernels of our own compute some as matrix
// products (see cuda_product_kernels.hpp and cuda_stem_kernels.hpp). cuBLAS computes the last layer. Fused kernels
// compute everything else. This header needs no CUDA header.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/network/conv_plans.hpp"
#include "demos/resnet/network/cuda/cuda_convolution.hpp"
#include "demos/resnet/network/cuda/cuda_edge_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_image_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"
#include "demos/resnet/network/cuda/cuda_pool_kernels.hpp"
#include "demos/resnet/network/hopper/cuda_product_kernels.hpp"
#include "demos/resnet/network/hopper/cuda_stem_kernels.hpp"
#include "demos/resnet/network/images.hpp"
#include "demos/resnet/network/network.hpp"

namespace resnet {

using demos::CudaHandles;

/// Some rows in device memory: stored images, or images that are already normalised.
struct CudaBatch {
  std::size_t rows;
  const std::uint8_t* images;   // [rows, height, width, 3]; if null, `normalised` has the images
  const std::int64_t* labels;   // [rows]
  const std::int64_t* row_ids;  // [rows], row numbers within the whole data set
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

/// The architecture lays out params and gradient [parameter_count], and statistics [statistics_count], all float32. The
/// gaps between the arrays of the gradient keep their values, or become 0 if there are no rows. The object holds a
/// workspace, but no parameters. The workspace is on the device that was current when the object was made. Members put
/// work on the stream. For the same addresses and number of rows they put the same work there, so the work can be
/// captured into a CUDA graph. Such a graph is valid as long as the object exists. The first call with a number of
/// rows, or with more rows than all calls before, makes plans and allocates memory, and waits for the device. One
/// object serves one stream. Members throw std::runtime_error if CUDA or cuDNN fails. If there is not enough memory,
/// the message says how many bytes are required.
class CudaNetwork {
 public:
  /// The network has its own list of plans. It chooses each plan by timing when it first needs it.
  CudaNetwork(const Architecture& architecture, CudaMath math);
  /// The network uses a list of plans, which other networks may share. It chooses a plan that is missing by timing, and
  /// adds it to the list.
  CudaNetwork(const Architecture& architecture, CudaMath math, std::shared_ptr<ConvPlans> plans);
  CudaNetwork(const CudaNetwork&) = delete;
  CudaNetwork& operator=(const CudaNetwork&) = delete;

  /// See CpuNetwork::loss_and_gradient. The outcome is valid until the next call. Labels out of range make the loss
  /// NaN. The network calls `ready` after the dense layer and after each block. It also does so without rows if
  /// normalisation is synchronized. If it has not called `ready`, all of the gradient is final on return.
  CudaOutcome loss_and_gradient(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                                float* statistics, const LossOptions& options, const SumOverRanks& sum, float* gradient,
                                const ReadyFrom& ready = {});

  /// See CpuNetwork::evaluate. The outcome is valid until the next call.
  CudaOutcome evaluate(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                       const float* statistics);

  /// Computes the logits [rows, classes] in float32. The network normalises by the running statistics. The logits are
  /// valid until the next call.
  const float* logits(const CudaHandles& handles, const CudaBatch& batch, const float* params, const float* statistics);

  /// Allocates the memory and makes the plans that the first call with `rows` rows would need. Waits for the device.
  void prepare_training(const CudaHandles& handles, std::size_t rows) { reserve(handles, rows, Phase::kTraining); }
  void prepare_evaluation(const CudaHandles& handles, std::size_t rows) { reserve(handles, rows, Phase::kInference); }

  /// The time of those convolutions of a step that cuDNN computes, in microseconds by ConvPass. Each was measured
  /// alone, when its plan was chosen. The times are for the number of rows of the last call, which must have been
  /// loss_and_gradient.
  std::array<double, kConvPasses> convolution_microseconds() const;

 private:
  enum class Phase { kTraining, kInference };

  /// The arrays of activations and the plans of a unit, for the current number of rows.
  struct Unit {
    void* sums = nullptr;                       // output of the convolution, and input of the normalisation
    void* output = nullptr;                     // after the ReLU, if the unit has a ReLU of its own
    float* norm = nullptr;                      // [7, channels]; see place_of
    const ConvPlan* forward = nullptr;          // may be null; see takes_statistics
    const ConvPlan* backward_input = nullptr;   // may be null; see adds_at_end
    const ConvPlan* backward_filter = nullptr;  // may be null; see has_stem_product
  };
  /// The arguments of one call.
  struct Pass {
    const CudaHandles& handles;
    const CudaBatch& batch;
    const float* params;
    float* statistics;
    float* gradient = nullptr;
    const SumOverRanks* sum = nullptr;  // if null or empty, only this rank's rows count
    Phase phase = Phase::kInference;
    const ReadyFrom* ready = nullptr;  // may be null or empty
    bool tells() const { return ready != nullptr && *ready; }
    bool synchronises() const { return sum != nullptr && *sum; }
  };
  /// The gradient that arrives at the end of a block: the gradient of its output is the sum of two arrays.
  struct Arriving {
    void* first;
    void* second;  // may be null if `unit` is empty
    // If set, `first` is the gradient of this unit's sums, and the end of the block computes the gradient of the unit's
    // input from it: see adds_at_end.
    std::optional<std::size_t> unit = std::nullopt;
  };
  /// Arrays for gradients of activations, which are used in turn. They are large enough for the blocks that share them.
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

  enum class Factor : std::uint8_t { as_it_is, transposed };
  enum class Product : std::uint8_t { of_elements, of_float };
  void multiply(const CudaHandles& handles, Factor a_is, Factor b_is, std::array<std::size_t, 3> sizes, const void* a,
                std::size_t stride_a, const void* b, std::size_t stride_b, void* c, Product type) const;

  Architecture architecture_;
  CudaMath math_;
  std::optional<cuda::ProductDevice> product_device_;  // empty if cuDNN computes all convolutions
  std::vector<Unit> units_;
  std::vector<void*> block_outputs_;
  std::vector<std::uint8_t*> passes_;  // by block: bits that say where gradients pass its last ReLU; null for inference

  demos::DeviceBuffer fixed_;        // its size does not depend on rows; it holds:
  void* narrow_params_ = nullptr;    // bfloat16, laid out as params
  void* narrow_gradient_ = nullptr;  // bfloat16, laid out as gradient
  void* folded_filter_ = nullptr;    // filters of the first convolution
  void* filter_scratch_ = nullptr;   // as large as the largest filters
  float* stem_scratch_ = nullptr;    // for stem_filter_gradient
  cuda::SumPlace sum_place_{};
  float* deviations_ = nullptr;
  const cuda::Chunk* chunks_ = nullptr;  // those of the dense layer come last
  std::size_t chunk_count_ = 0;
  std::size_t filter_chunks_ = 0;
  double* mean_loss_ = nullptr;
  std::int64_t* correct_ = nullptr;

  demos::GrowingDeviceMemory memory_;  // laid out for the current rows and phase; it holds:
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

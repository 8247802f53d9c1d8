#include "demos/resnet/network/cuda/cuda_network.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <stdexcept>

#include "demos/common/cuda_check.hpp"

namespace resnet {
namespace {

using demos::check_cublas;
using demos::check_cuda;

cudaDataType_t type_of(CudaMath math) { return math == CudaMath::kBfloat16 ? CUDA_R_16BF : CUDA_R_32F; }

void clear(void* place, std::size_t bytes, CUstream_st* stream) {
  if (bytes > 0) check_cuda(cudaMemsetAsync(place, 0, bytes, stream), "cudaMemsetAsync");
}

}  // namespace

cuda::NormShape CudaNetwork::norm_shape(const Pass& pass, std::size_t unit) const {
  const ConvUnit& of = architecture_.units[unit];
  return {pass.batch.rows * of.size_out() * of.size_out(), of.channels_out};
}

cuda::PoolShape CudaNetwork::pool_shape(const Pass& pass) const {
  const ConvUnit& stem = architecture_.stem();
  return {pass.batch.rows, stem.size_out(), stem.channels_out};
}

cuda::NormPlace CudaNetwork::place_of(const Pass& pass, std::size_t unit) const {
  const ConvUnit& of = architecture_.units[unit];
  float* const own = units_[unit].norm;
  const std::size_t channels = of.channels_out;
  return {.scale = pass.params + of.scale_offset,
          .shift = pass.params + of.shift_offset,
          .running_mean = pass.statistics + of.statistics_offset,
          .running_variance = pass.statistics + of.statistics_offset + channels,
          .factor = own,
          .offset = own + channels,
          .mean = own + 2 * channels,
          .inverse_deviation = own + 3 * channels,
          .backward = own + 4 * channels,
          .scale_gradient = pass.gradient == nullptr ? nullptr : pass.gradient + of.scale_offset,
          .shift_gradient = pass.gradient == nullptr ? nullptr : pass.gradient + of.shift_offset};
}

void* CudaNetwork::filter_of(const Pass& pass, std::size_t unit) const {
  if (unit == 0) return folded_filter_;
  const std::size_t offset = architecture_.units[unit].weights_offset;
  if (math_ == CudaMath::kBfloat16) return static_cast<std::byte*>(narrow_params_) + offset * element_bytes(math_);
  return const_cast<float*>(pass.params) + offset;
}

/// Returns whether kernels of our own compute the first convolution and the gradient of its filter, in training.
bool CudaNetwork::has_stem_product() const {
  const ConvUnit& stem = architecture_.stem();
  return product_device_ && cuda::has_stem_product(stem.size_out(), stem.channels_out);
}

/// Returns whether a kernel of our own computes the unit's convolution, together with the statistics of its output.
bool CudaNetwork::takes_statistics(std::size_t unit, Phase phase) const {
  const ConvUnit& of = architecture_.units[unit];
  if (!product_device_ || phase != Phase::kTraining) return false;
  if (unit == 0) return has_stem_product();
  return of.kernel == 1 && of.stride == 1 && cuda::has_product(of.channels_in, of.channels_out);
}

/// The gradient of the block's input has a part that comes from the block's first unit. Returns whether a kernel of our
/// own computes this part at the end of the block before, where it is added to the other part.
bool CudaNetwork::adds_at_end(std::size_t block) const {
  const ConvUnit& of = architecture_.units[architecture_.blocks[block].first_unit];
  return product_device_ && block > 0 && of.kernel == 1 && of.stride == 1 &&
         cuda::has_product(of.channels_out, of.channels_in);
}

void CudaNetwork::convert_filters(const Pass& pass) {
  const ConvUnit& stem = architecture_.stem();
  cuda::fold_filter(math_, stem.channels_out, pass.params + stem.weights_offset, folded_filter_, pass.handles.stream);
  if (math_ != CudaMath::kBfloat16) return;
  cuda::to_bfloat16(chunks_, chunk_count_, pass.params, narrow_params_, pass.handles.stream);
}

/// Runs also without rows, because nothing else computes the statistics.
void CudaNetwork::multiply_with_statistics(const Pass& pass, std::size_t unit, const void* input) {
  const ConvUnit& of = architecture_.units[unit];
  void* const sums = units_[unit].sums;
  const cuda::NormPlace place = place_of(pass, unit);
  CUstream_st* const stream = pass.handles.stream;
  if (unit == 0) {
    return cuda::stem_statistics(*product_device_, {pass.batch.rows, of.size_out()}, input, folded_filter_, sums, place,
                                 sum_place_, ranks_of(pass), stream);
  }
  const cuda::Product product{of.channels_in, input, filter_of(pass, unit)};
  cuda::product_statistics(*product_device_, norm_shape(pass, unit), product, sums, place, sum_place_, ranks_of(pass),
                           stream);
}

/// Computes the unit's sums, and their statistics if takes_statistics says so.
void CudaNetwork::convolve(const Pass& pass, std::size_t unit, const void* input) {
  if (takes_statistics(unit, pass.phase)) return multiply_with_statistics(pass, unit, input);
  if (pass.batch.rows == 0) return;
  units_[unit].forward->run(pass.handles.cudnn,
                            {const_cast<void*>(input), filter_of(pass, unit), units_[unit].sums, plan_workspace_});
}

/// Computes the factors of the unit's normalisation: from its sums, from the statistics that convolve has computed, or
/// in inference from the running statistics.
void CudaNetwork::normalise(const Pass& pass, std::size_t unit) {
  const cuda::NormShape shape = norm_shape(pass, unit);
  const cuda::NormPlace place = place_of(pass, unit);
  CUstream_st* const stream = pass.handles.stream;
  if (pass.phase == Phase::kInference) return cuda::use_running(shape.channels, place, stream);
  if (!takes_statistics(unit, pass.phase))
    cuda::statistics(math_, shape, units_[unit].sums, place, sum_place_, ranks_of(pass), stream);
  if (!pass.synchronises()) return;
  cuda::statistics_own_sums(shape, place, sum_place_.sums, stream);
  (*pass.sum)({sum_place_.sums, shape.channels + 1});
  cuda::statistics_own_deviations(shape, place, sum_place_.sums, deviations_, stream);
  (*pass.sum)({deviations_, shape.channels});
  cuda::statistics_finish(shape, place, sum_place_.sums, deviations_, stream);
}

void CudaNetwork::forward(const Pass& pass) {
  convert_filters(pass);
  forward_images(pass);
  const void* flowing = pooled_;
  for (std::size_t i = 0; i < architecture_.blocks.size(); ++i) flowing = forward_block(pass, i, flowing);
  forward_head(pass, flowing);
}

void CudaNetwork::forward_images(const Pass& pass) {
  const CudaBatch& batch = pass.batch;
  CUstream_st* const stream = pass.handles.stream;
  if (batch.normalised != nullptr) {
    cuda::fold(math_, batch.rows, architecture_.spec.image_size, batch.normalised, image_, stream);
  } else {
    cuda::prepare(math_, batch.rows, batch.images, batch.image_shape, batch.preparation, batch.row_ids, batch.key,
                  image_, stream);
  }
  convolve(pass, 0, image_);
  normalise(pass, 0);
  cuda::pool_forward(math_, pool_shape(pass), units_[0].sums, place_of(pass, 0), pooled_, which_, stream);
}

const void* CudaNetwork::forward_block(const Pass& pass, std::size_t block, const void* input) {
  const Block& of = architecture_.blocks[block];
  CUstream_st* const stream = pass.handles.stream;
  const void* flowing = input;
  const std::size_t last = of.first_unit + of.unit_count - 1;
  for (std::size_t unit = of.first_unit; unit <= last; ++unit) {
    convolve(pass, unit, flowing);
    normalise(pass, unit);
    if (unit == last) break;
    cuda::apply_relu(math_, norm_shape(pass, unit), units_[unit].sums, place_of(pass, unit), units_[unit].output,
                     stream);
    flowing = units_[unit].output;
  }
  void* const output = block_outputs_[block];
  if (!of.shortcut) {
    cuda::apply_add_relu(math_, norm_shape(pass, last), units_[last].sums, place_of(pass, last), input, output,
                         passes_[block], stream);
    return output;
  }
  const std::size_t shortcut = *of.shortcut;
  convolve(pass, shortcut, input);
  normalise(pass, shortcut);
  cuda::apply_two_relu(math_, norm_shape(pass, last), units_[last].sums, place_of(pass, last), units_[shortcut].sums,
                       place_of(pass, shortcut), output, passes_[block], stream);
  return output;
}

/// c [m, n] = op(a) op(b), all row-major. `sizes` are m, n and the length of the sums. a and b have the network's
/// element type. c has float32 if `type` is of_float, else the network's element type.
void CudaNetwork::multiply(const CudaHandles& handles, Factor a_is, Factor b_is, std::array<std::size_t, 3> sizes,
                           const void* a, std::size_t stride_a, const void* b, std::size_t stride_b, void* c,
                           Product type) const {
  const auto [m, n, k] = sizes;
  if (m == 0) return;
  const float one = 1;
  const float zero = 0;
  const auto number = [](std::size_t value) { return static_cast<int>(value); };
  const auto op = [](Factor factor) { return factor == Factor::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const cublasComputeType_t compute = math_ == CudaMath::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  // cuBLAS is column-major, so it computes the transpose of c as the product of the transposes.
  check_cublas(
      cublasGemmEx(handles.cublas, op(b_is), op(a_is), number(n), number(m), number(k), &one, b, type_of(math_),
                   number(stride_b), a, type_of(math_), number(stride_a), &zero, c,
                   type == Product::of_float ? CUDA_R_32F : type_of(math_), number(n), compute, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

void CudaNetwork::forward_head(const Pass& pass, const void* last) {
  const std::size_t rows = pass.batch.rows;
  const std::size_t features = architecture_.features;
  const std::size_t size = architecture_.final_size();
  cuda::mean_forward(math_, rows, size * size, features, last, features_, pass.handles.stream);
  const std::size_t offset = architecture_.fc_weights_offset * element_bytes(math_);
  const void* const weights = math_ == CudaMath::kBfloat16 ? static_cast<const std::byte*>(narrow_params_) + offset
                                                           : reinterpret_cast<const std::byte*>(pass.params) + offset;
  multiply(pass.handles, Factor::as_it_is, Factor::transposed, {rows, architecture_.spec.classes, features}, features_,
           features, weights, features, logits_, Product::of_float);
}

CudaOutcome CudaNetwork::outcome(const Pass& pass, const LossOptions& options, void* dlogits) {
  cuda::LossPlace place = loss_place_;
  place.mean_loss = mean_loss_;
  place.correct = correct_;
  cuda::loss(math_, pass.batch.rows, architecture_.spec.classes, logits_, pass.params + architecture_.fc_bias_offset,
             pass.batch.labels, options, dlogits, place, pass.handles.stream);
  return {mean_loss_, correct_};
}

CudaOutcome CudaNetwork::loss_and_gradient(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                                           float* statistics, const LossOptions& options, const SumOverRanks& sum,
                                           float* gradient, const ReadyFrom& ready) {
  const Pass pass{handles, batch, params, statistics, gradient, &sum, Phase::kTraining, &ready};
  reserve(pass);
  if (batch.rows == 0) {
    clear(gradient, architecture_.parameter_count * sizeof(float), handles.stream);
    if (!pass.synchronises()) return outcome(pass, options, nullptr);
  }
  forward(pass);
  const CudaOutcome result = outcome(pass, options, dlogits_);
  backward(pass);
  return result;
}

CudaOutcome CudaNetwork::evaluate(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                                  const float* statistics) {
  const Pass pass{handles, batch, params, const_cast<float*>(statistics)};
  reserve(pass);
  if (batch.rows > 0) forward(pass);
  return outcome(pass, {}, nullptr);
}

const float* CudaNetwork::logits(const CudaHandles& handles, const CudaBatch& batch, const float* params,
                                 const float* statistics) {
  static_cast<void>(evaluate(handles, batch, params, statistics));
  return logits_;
}

}  // namespace resnet

// The backward pass of a residual network on a CUDA device. Gradients of activations live in three arrays, which take
// turns: what arrives at a block (one or two arrays, to be added), and what is computed from it.

#include "demos/resnet/cuda_network.hpp"

#include <utility>

namespace resnet {

/// One that is neither of these.
void* CudaNetwork::free_gradient(const void* one, const void* other) const {
  for (void* candidate : gradients_) {
    if (candidate != one && candidate != other) return candidate;
  }
  return nullptr;  // cannot be: there are three
}

const void* CudaNetwork::input_of_block(std::size_t block) const {
  return block == 0 ? pooled_ : block_outputs_[block - 1];
}

void CudaNetwork::backward(const Pass& pass) {
  void* const last = gradients_[0];
  backward_head(pass, last);
  if (pass.tells()) (*pass.ready)(architecture_.fc_weights_offset);
  Gradients flowing{last, nullptr};
  std::size_t end_chunk = filter_chunks_;
  for (std::size_t i = architecture_.blocks.size(); i > 0; --i) {
    flowing = backward_block(pass, i - 1, flowing);
    if (!pass.tells()) continue;
    const std::size_t first_unit = architecture_.blocks[i - 1].first_unit;
    const std::size_t begin_chunk = first_chunk(first_unit);
    widen_gradient(pass, begin_chunk, std::exchange(end_chunk, begin_chunk));
    (*pass.ready)(architecture_.units[first_unit].weights_offset);
  }
  backward_images(pass, flowing);
  widen_gradient(pass, 0, end_chunk);
}

/// Of the filters before this unit's; see chunks_of.
std::size_t CudaNetwork::first_chunk(std::size_t unit) const {
  std::size_t chunks = 0;
  for (std::size_t before = 1; before < unit; ++before)
    chunks += (architecture_.units[before].weights() + cuda::kMostInChunk - 1) / cuda::kMostInChunk;
  return chunks;
}

/// Filters' gradients as float32, where they are narrow.
void CudaNetwork::widen_gradient(const Pass& pass, std::size_t first_chunk, std::size_t end_chunk) {
  if (math_ != CudaMath::kBfloat16 || pass.batch.rows == 0 || first_chunk == end_chunk) return;
  cuda::from_bfloat16(chunks_ + first_chunk, end_chunk - first_chunk, narrow_gradient_, pass.gradient,
                      pass.handles.stream);
}

void CudaNetwork::backward_head(const Pass& pass, void* gradient) {
  const std::size_t rows = pass.batch.rows;
  if (rows == 0) return;
  const std::size_t classes = architecture_.spec.classes;
  const std::size_t features = architecture_.features;
  const std::size_t size = architecture_.final_size();
  const std::size_t offset = architecture_.fc_weights_offset * element_bytes(math_);
  const void* const weights = math_ == CudaMath::kBfloat16 ? static_cast<const std::byte*>(narrow_params_) + offset
                                                           : reinterpret_cast<const std::byte*>(pass.params) + offset;
  cuda::bias_backward(math_, rows, classes, dlogits_, pass.gradient + architecture_.fc_bias_offset,
                      pass.handles.stream);
  multiply(pass.handles, true, false, {classes, features, rows}, dlogits_, classes, features_, features,
           pass.gradient + architecture_.fc_weights_offset, true);
  multiply(pass.handles, false, false, {rows, features, classes}, dlogits_, classes, weights, features, dfeatures_,
           false);
  cuda::mean_backward(math_, rows, size * size, features, dfeatures_, gradient, pass.handles.stream);
}

/// From the unit's sums in sum_place_ to the gradients of its scale and shift and the line its input's gradient lies on.
void CudaNetwork::backward_norm(const Pass& pass, std::size_t unit) {
  const cuda::NormShape shape = norm_shape(pass, unit);
  const cuda::NormPlace place = place_of(pass, unit);
  CUstream_st* const stream = pass.handles.stream;
  const cuda::Ranks ranks = pass.synchronises() ? cuda::Ranks::kAll : cuda::Ranks::kOwn;
  cuda::backward_own(shape, place, sum_place_.sums, ranks, stream);
  if (!pass.synchronises()) return;
  (*pass.sum)({sum_place_.sums, 2 * shape.channels + 1});
  cuda::backward_finish(shape, place, sum_place_.sums, stream);
}

void CudaNetwork::backward_filter(const Pass& pass, std::size_t unit, const void* input, void* gradient) {
  if (pass.batch.rows == 0) return;
  const ConvUnit& of = architecture_.units[unit];
  void* result = filter_scratch_;
  if (unit > 0) {
    result =
        math_ == CudaMath::kBfloat16
            ? static_cast<void*>(static_cast<std::byte*>(narrow_gradient_) + of.weights_offset * element_bytes(math_))
            : static_cast<void*>(pass.gradient + of.weights_offset);
  }
  units_[unit].backward_filter->run(pass.handles.cudnn, {const_cast<void*>(input), result, gradient, plan_workspace_});
  if (unit > 0) return;
  cuda::narrow_filter_gradient(math_, of.weights() / of.channels_in, result, pass.gradient + of.weights_offset,
                               pass.handles.stream);
}

void CudaNetwork::backward_input(const Pass& pass, std::size_t unit, void* gradient, void* result) {
  if (pass.batch.rows == 0) return;
  units_[unit].backward_input->run(pass.handles.cudnn, {result, filter_of(pass, unit), gradient, plan_workspace_});
}

CudaNetwork::Gradients CudaNetwork::backward_block(const Pass& pass, std::size_t block, Gradients arriving) {
  const Block& of = architecture_.blocks[block];
  const std::size_t last = of.first_unit + of.unit_count - 1;
  CUstream_st* const stream = pass.handles.stream;
  const cuda::NormShape shape = norm_shape(pass, last);
  const void* const input = input_of_block(block);

  // What passes the ReLU at the end goes to the last unit and to the shortcut.
  void* const passed = arriving.second != nullptr ? arriving.second : arriving.first;
  cuda::backward_sums_block(math_, shape, arriving.first, arriving.second, block_outputs_[block], units_[last].sums,
                            place_of(pass, last), passed, sum_place_, stream);
  backward_norm(pass, last);
  void* flowing = free_gradient(passed, nullptr);
  cuda::backward_apply(math_, shape, passed, units_[last].sums, place_of(pass, last), flowing, stream);

  for (std::size_t unit = last;; --unit) {
    const void* const unit_input = unit == of.first_unit ? input : units_[unit - 1].output;
    backward_filter(pass, unit, unit_input, flowing);
    void* const next = free_gradient(passed, flowing);
    backward_input(pass, unit, flowing, next);
    flowing = next;
    if (unit == of.first_unit) break;
    const cuda::NormShape before = norm_shape(pass, unit - 1);
    const cuda::NormPlace place = place_of(pass, unit - 1);
    cuda::backward_sums_relu(math_, before, flowing, units_[unit - 1].sums, place, sum_place_, stream);
    backward_norm(pass, unit - 1);
    cuda::backward_apply_relu(math_, before, flowing, units_[unit - 1].sums, place, flowing, stream);
  }
  if (!of.shortcut) return {flowing, passed};

  const std::size_t shortcut = *of.shortcut;
  const cuda::NormPlace place = place_of(pass, shortcut);
  cuda::backward_sums(math_, shape, passed, units_[shortcut].sums, place, sum_place_, stream);
  backward_norm(pass, shortcut);
  cuda::backward_apply(math_, shape, passed, units_[shortcut].sums, place, passed, stream);
  backward_filter(pass, shortcut, input, passed);
  void* const through = free_gradient(passed, flowing);
  backward_input(pass, shortcut, passed, through);
  return {flowing, through};
}

void CudaNetwork::backward_images(const Pass& pass, Gradients arriving) {
  const ConvUnit& stem = architecture_.stem();
  CUstream_st* const stream = pass.handles.stream;
  const cuda::NormShape shape = norm_shape(pass, 0);
  const cuda::NormPlace place = place_of(pass, 0);
  void* const flowing = free_gradient(arriving.first, arriving.second);
  cuda::pool_backward(math_, {pass.batch.rows, stem.size_out(), stem.channels_out}, arriving.first, arriving.second,
                      which_, flowing, stream);
  cuda::backward_sums_relu(math_, shape, flowing, units_[0].sums, place, sum_place_, stream);
  backward_norm(pass, 0);
  cuda::backward_apply_relu(math_, shape, flowing, units_[0].sums, place, flowing, stream);
  backward_filter(pass, 0, image_, flowing);
}

}  // namespace resnet

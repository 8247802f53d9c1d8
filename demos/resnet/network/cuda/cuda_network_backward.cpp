// The backward pass of a residual network on a CUDA device. The gradients of activations are in three arrays, which are
// used in turn. One or two of them hold the gradient that arrives at a block (see Arriving), and the others hold the
// gradients computed from it. Each resolution has three arrays of its own. The arrays of larger resolutions lie over
// the activations of later blocks, which are no longer needed at that time.

#include "demos/resnet/network/cuda/cuda_network.hpp"

#include <utility>

namespace resnet {

/// An array of the block that is neither of these two.
void* CudaNetwork::free_gradient(std::size_t block, const void* one, const void* other) const {
  for (void* candidate : gradients_[block]) {
    if (candidate != one && candidate != other) return candidate;
  }
  return nullptr;  // not reached: there are three arrays
}

const void* CudaNetwork::input_of_block(std::size_t block) const {
  return block == 0 ? pooled_ : block_outputs_[block - 1];
}

void CudaNetwork::backward(const Pass& pass) {
  void* const last = gradients_.back()[0];
  backward_head(pass, last);
  if (pass.tells()) (*pass.ready)(architecture_.fc_weights_offset);
  Arriving flowing{last, nullptr};
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

/// The number of chunks of the filters before this unit's; see chunks_of.
std::size_t CudaNetwork::first_chunk(std::size_t unit) const {
  std::size_t chunks = 0;
  for (std::size_t before = 1; before < unit; ++before)
    chunks += (architecture_.units[before].weights() + cuda::kMostInChunk - 1) / cuda::kMostInChunk;
  return chunks;
}

/// Converts the gradients of filters to float32, if they are bfloat16.
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
  multiply(pass.handles, Factor::transposed, Factor::as_it_is, {classes, features, rows}, dlogits_, classes, features_,
           features, pass.gradient + architecture_.fc_weights_offset, Product::of_float);
  multiply(pass.handles, Factor::as_it_is, Factor::as_it_is, {rows, features, classes}, dlogits_, classes, weights,
           features, dfeatures_, Product::of_elements);
  cuda::mean_backward(math_, rows, size * size, features, dfeatures_, gradient, pass.handles.stream);
}

cuda::NormSide CudaNetwork::side_of(const Pass& pass, std::size_t unit, void* gradient) const {
  return {units_[unit].sums, place_of(pass, unit), gradient, sum_place_.sums};
}

/// If normalisation is synchronized, adds up this rank's sums over the ranks. Computes from them the factors of the
/// gradient of the normalisation's input.
void CudaNetwork::sum_over_ranks(const Pass& pass, std::size_t unit, const cuda::NormSide& side) {
  if (!pass.synchronises()) return;
  const cuda::NormShape shape = norm_shape(pass, unit);
  (*pass.sum)({side.sums, 2 * shape.channels + 1});
  cuda::backward_finish(shape, side.norm, side.sums, pass.handles.stream);
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
  cuda::unfold_filter_gradient(math_, of.channels_out, result, pass.gradient + of.weights_offset, pass.handles.stream);
}

void CudaNetwork::backward_input(const Pass& pass, std::size_t unit, void* gradient, void* result) {
  if (pass.batch.rows == 0) return;
  units_[unit].backward_input->run(pass.handles.cudnn, {result, filter_of(pass, unit), gradient, plan_workspace_});
}

/// Goes through the units of a block, from the last to the first. `flowing` is first the gradient of the last unit's
/// sums. At the end it is the gradient of the block's input or, if adds_at_end, of the first unit's sums. `kept` is not
/// changed.
void CudaNetwork::backward_units(const Pass& pass, std::size_t block, void*& flowing, const void* kept) {
  const Block& of = architecture_.blocks[block];
  for (std::size_t unit = of.first_unit + of.unit_count - 1;; --unit) {
    const bool is_first = unit == of.first_unit;
    backward_filter(pass, unit, is_first ? input_of_block(block) : units_[unit - 1].output, flowing);
    if (is_first && adds_at_end(block)) return;
    void* const next = free_gradient(block, kept, flowing);
    backward_input(pass, unit, flowing, next);
    flowing = next;
    if (is_first) return;
    const cuda::NormShape shape = norm_shape(pass, unit - 1);
    const cuda::NormSide side = side_of(pass, unit - 1, flowing);
    cuda::backward_sums_relu(math_, shape, flowing, side, sum_place_, ranks_of(pass), pass.handles.stream);
    sum_over_ranks(pass, unit - 1, side);
    cuda::backward_apply_relu(math_, shape, flowing, side, pass.handles.stream);
  }
}

/// Goes back through the end of a block. Writes the gradient that passes the block's last ReLU to `passed`, and the
/// gradient of the last unit's sums to `flowing`. If the shortcut is a unit, `passed` at last holds the gradient of the
/// shortcut's sums.
void CudaNetwork::backward_end(const Pass& pass, std::size_t block, const Arriving& arriving, void* passed,
                               void* flowing) {
  const Block& of = architecture_.blocks[block];
  const std::size_t last = of.first_unit + of.unit_count - 1;
  CUstream_st* const stream = pass.handles.stream;
  const cuda::NormShape shape = norm_shape(pass, last);
  const cuda::NormSide side = side_of(pass, last, flowing);
  cuda::NormSide shortcut_side{};
  if (of.shortcut) {
    shortcut_side = side_of(pass, *of.shortcut, passed);
    shortcut_side.sums += 2 * shape.channels + 1;
  }
  const cuda::NormSide* const other = of.shortcut ? &shortcut_side : nullptr;
  if (arriving.unit) {
    const cuda::Product product{architecture_.units[*arriving.unit].channels_out, arriving.first,
                                filter_of(pass, *arriving.unit)};
    cuda::product_sums_block(*product_device_, shape, product, arriving.second, passes_[block], passed, side, other,
                             sum_place_, ranks_of(pass), stream);
  } else {
    cuda::backward_sums_block(math_, shape, arriving.first, arriving.second, passes_[block], passed, side, other,
                              sum_place_, ranks_of(pass), stream);
  }
  sum_over_ranks(pass, last, side);
  if (other != nullptr) sum_over_ranks(pass, *of.shortcut, *other);
  cuda::backward_apply_block(math_, shape, passed, side, other, stream);
}

/// Returns the gradient that arrives at the block before. `flowing` may be the same array as arriving.first, which is
/// no longer needed when `flowing` is written.
CudaNetwork::Arriving CudaNetwork::backward_block(const Pass& pass, std::size_t block, const Arriving& arriving) {
  const Block& of = architecture_.blocks[block];
  void* const passed = arriving.second != nullptr ? arriving.second : arriving.first;
  void* flowing = free_gradient(block, passed, nullptr);
  backward_end(pass, block, arriving, passed, flowing);
  backward_units(pass, block, flowing, passed);
  const std::optional<std::size_t> unit = adds_at_end(block) ? std::optional(of.first_unit) : std::nullopt;
  if (!of.shortcut) return {flowing, passed, unit};
  backward_filter(pass, *of.shortcut, input_of_block(block), passed);
  void* const through = free_gradient(block, passed, flowing);
  backward_input(pass, *of.shortcut, passed, through);
  return {flowing, through, unit};
}

void CudaNetwork::backward_images(const Pass& pass, const Arriving& arriving) {
  const cuda::PoolGradient gradient{arriving.first, arriving.second, which_};
  const cuda::NormSide side = side_of(pass, 0, free_gradient(0, arriving.first, arriving.second));
  cuda::pool_backward_sums(math_, pool_shape(pass), gradient, side, sum_place_, ranks_of(pass), pass.handles.stream);
  sum_over_ranks(pass, 0, side);
  if (has_stem_product()) {
    if (pass.batch.rows == 0) return;
    const ConvUnit& stem = architecture_.stem();
    return cuda::stem_filter_gradient(*product_device_, {pass.batch.rows, stem.size_out()}, image_, gradient, side,
                                      stem_scratch_, pass.gradient + stem.weights_offset, pass.handles.stream);
  }
  cuda::pool_backward_apply(math_, pool_shape(pass), gradient, side, pass.handles.stream);
  backward_filter(pass, 0, image_, side.dx);
}

}  // namespace resnet

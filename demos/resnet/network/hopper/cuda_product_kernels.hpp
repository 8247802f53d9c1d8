#pragma once

// 1x1 convolutions with few input channels, as matrix products of bfloat16. A kernel also does the next operation on
// the product while the product is in registers. This saves a pass over memory. This header needs no CUDA header. The
// functions put their work on the stream, and give the same bits each time. They throw std::runtime_error if CUDA
// fails.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "demos/resnet/network/cuda/cuda_norm_kernels.hpp"

namespace resnet::cuda {

/// A device that supports these kernels.
struct ProductDevice {
  unsigned blocks;           // number of blocks that run at once
  void* tensor_map_encoder;  // see find_tensor_map_encoder
};

/// Prepares the current device for the kernels. Returns nothing if its compute capability is not 9.0. Must not be
/// called while a CUDA graph is captured.
std::optional<ProductDevice> product_device();

/// x [positions, depth] times a filter.
struct Product {
  std::size_t depth;
  const void* x;
  const void* filter;
};

/// Returns whether there is a kernel for a product with sums of length `depth` and a result of `channels` channels. The
/// functions below support only such products.
constexpr bool has_product(std::size_t depth, std::size_t channels) {
  return (depth == 64 || depth == 128 || depth == 256) && channels % 256 == 0;
}

/// y = x filter^T, with a filter [channels, depth]. Also computes what `statistics` computes from y.
void product_statistics(const ProductDevice& device, NormShape shape, const Product& product, void* y,
                        const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream);

/// backward_sums_block with g1 = x filter, and a filter [depth, channels]. g1 is neither rounded nor written to memory.
/// dz may be g2, but not product.x.
void product_sums_block(const ProductDevice& device, NormShape shape, const Product& product, const void* g2,
                        const std::uint8_t* passes, void* dz, const NormSide& last, const NormSide* shortcut,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream);

}  // namespace resnet::cuda

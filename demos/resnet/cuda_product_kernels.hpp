#pragma once

// Convolutions of a pixel each, with few channels to add up over, as matrix products of bfloat16 that go on with what they
// have computed while it is at hand: what would be another pass over memory. Needs no CUDA header. Everything is put on the
// stream and gives the same bits each time. Throws std::runtime_error where CUDA fails.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "demos/resnet/cuda_norm_kernels.hpp"

namespace resnet::cuda {

/// A device for these kernels.
struct ProductDevice {
  unsigned blocks;           // at once
  void* tensor_map_encoder;  // see find_tensor_map_encoder
};

/// The current device, made ready; none where it is not of compute capability 9.0. Not while a graph is captured.
std::optional<ProductDevice> product_device();

/// x [positions, depth] times a filter.
struct Product {
  std::size_t depth;
  const void* x;
  const void* filter;
};

/// Whether there is a kernel for that: by what is added up over, and by the channels of the result. The functions below are
/// for nothing else.
constexpr bool has_product(std::size_t depth, std::size_t channels) {
  return (depth == 64 || depth == 128 || depth == 256) && channels % 256 == 0;
}

/// y = x filter^T, with a filter [channels, depth]; and what `statistics` makes of y.
void product_statistics(const ProductDevice& device, NormShape shape, const Product& product, void* y,
                        const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream);

/// backward_sums_block with g1 = x filter, with a filter [depth, channels]; g1 is not rounded, nor written anywhere. dz may
/// be g2, not product.x.
void product_sums_block(const ProductDevice& device, NormShape shape, const Product& product, const void* g2,
                        const std::uint8_t* passes, void* dz, const NormSide& last, const NormSide* shortcut,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream);

}  // namespace resnet::cuda

#pragma once

// The tiles of the first convolution's product and of its filter's gradient. A tile is kStemWidth positions of some
// lines, with the part of the image that these are computed from.

#include <cuda_bf16.h>

#include <cstddef>

#include "demos/resnet/network/hopper/cuda_product_tiles.cuh"
#include "demos/resnet/network/hopper/cuda_stem_kernels.hpp"
#include "demos/resnet/network/hopper/cuda_tensor_map.hpp"

namespace resnet::cuda {

/// The place of a tile of kLines lines, and the layout of its part of the image in shared memory: two halves of 8
/// channels, one after the other.
template <unsigned kLines>
struct StemTile {
  static constexpr unsigned kWidth = kStemWidth;
  static constexpr unsigned kHalfChannels = kFoldedChannels / 2;
  static constexpr unsigned kImageLines = kLines + kFoldedKernel - 1;
  static constexpr unsigned kImageWidth = kWidth + kFoldedKernel - 1;
  static constexpr unsigned kPixelBytes = kHalfChannels * sizeof(__nv_bfloat16);  // in a half
  static constexpr unsigned kLineBytes = kImageWidth * kPixelBytes;
  static constexpr unsigned kHalfBytes = kImageLines * kLineBytes;
  static constexpr unsigned kHalf = (kHalfBytes + 127) / 128 * 128;  // offset of the second half

  unsigned row;
  unsigned line;
  unsigned column;

  static __host__ __device__ unsigned count_in(unsigned size_out) { return size_out / kLines * (size_out / kWidth); }
  __device__ StemTile(unsigned tile, unsigned size_out)
      : row(tile / count_in(size_out)),
        line(tile % count_in(size_out) / (size_out / kWidth) * kLines),
        column(tile % (size_out / kWidth) * kWidth) {}

  /// Begins to copy the part of the image, 2 kHalfBytes.
  __device__ void fetch_image(unsigned shared, const CUtensorMap& images, unsigned barrier) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
      fetch_box(shared + half * kHalf, images, {half * kHalfChannels, column, line, row}, barrier);
  }
  /// The tensor map for fetch_image, of x as in StemShape.
  static CUtensorMap map_of(void* encoder, const StemShape& shape, const void* x) {
    const std::size_t folded = shape.size_out + kFoldedKernel - 1;
    return map_of_images(encoder, {x, shape.rows, folded, kFoldedChannels, sizeof(__nv_bfloat16)},
                         {.lines = kImageLines, .columns = kImageWidth, .channels = kHalfChannels});
  }
};

}  // namespace resnet::cuda

#pragma once

// What the first convolution's product and its filter's gradient go through: tiles of kStemWidth positions of some lines, and
// the images behind them.

#include <cuda_bf16.h>

#include <cstddef>

#include "demos/resnet/cuda_product_tiles.cuh"
#include "demos/resnet/cuda_stem_kernels.hpp"
#include "demos/resnet/cuda_tensor_map.hpp"

namespace resnet::cuda {

/// Which tile of so many lines it is, and where what it is convolved with lies in shared memory: halves of 8 channels, one
/// after the other.
template <unsigned kLines>
struct StemTile {
  static constexpr unsigned kWidth = kStemWidth;
  static constexpr unsigned kHalfChannels = kFoldedChannels / 2;
  static constexpr unsigned kImageLines = kLines + kFoldedKernel - 1;
  static constexpr unsigned kImageWidth = kWidth + kFoldedKernel - 1;
  static constexpr unsigned kPixelBytes = kHalfChannels * sizeof(__nv_bfloat16);  // of a half
  static constexpr unsigned kLineBytes = kImageWidth * kPixelBytes;
  static constexpr unsigned kHalfBytes = kImageLines * kLineBytes;
  static constexpr unsigned kHalf = (kHalfBytes + 127) / 128 * 128;  // where the second one begins

  unsigned row;
  unsigned line;
  unsigned column;

  static __host__ __device__ unsigned count_in(unsigned size_out) { return size_out / kLines * (size_out / kWidth); }
  __device__ StemTile(unsigned tile, unsigned size_out)
      : row(tile / count_in(size_out)),
        line(tile % count_in(size_out) / (size_out / kWidth) * kLines),
        column(tile % (size_out / kWidth) * kWidth) {}

  /// Begins to copy 2 kHalfBytes of an image.
  __device__ void fetch_image(unsigned shared, const CUtensorMap& images, unsigned barrier) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
      fetch_box(shared + half * kHalf, images, {half * kHalfChannels, column, line, row}, barrier);
  }
  /// Of x as in StemShape, for fetch_image.
  static CUtensorMap map_of(void* encoder, const StemShape& shape, const void* x) {
    const std::size_t folded = shape.size_out + kFoldedKernel - 1;
    return map_of_images(encoder, {x, shape.rows, folded, kFoldedChannels, sizeof(__nv_bfloat16)},
                         {.lines = kImageLines, .columns = kImageWidth, .channels = kHalfChannels});
  }
};

}  // namespace resnet::cuda

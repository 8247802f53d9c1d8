#include "demos/resnet/network/cuda/cuda_image_kernels.hpp"

#include "demos/resnet/network/cuda/cuda_elements.cuh"

namespace resnet::cuda {
namespace {

constexpr int kColors = 3;
constexpr int kBefore = 2;  // width of the border before the image, in folded pixels

/// Writes a folded pixel. Calls `color(line, column, c)` for each of its values that is inside the image of `size`.
template <typename T, class Color>
__device__ void write_folded(unsigned line, unsigned column, unsigned size, T* place, Color color) {
  float values[kFoldedChannels] = {};
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      const int from_line = 2 * (static_cast<int>(line) - kBefore) + b;
      const int from_column = 2 * (static_cast<int>(column) - kBefore) + d;
      const bool is_inside = from_line >= 0 && from_column >= 0 && from_line < static_cast<int>(size) &&
                             from_column < static_cast<int>(size);
#pragma unroll
      for (int c = 0; c < kColors; ++c) {
        if (is_inside) values[(2 * b + d) * kColors + c] = color(from_line, from_column, c);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < static_cast<int>(kFoldedChannels); half += kVector) {
    Vector x;
#pragma unroll
    for (int i = 0; i < kVector; ++i) x.v[i] = values[half + i];
    store(place + half, x);
  }
}

/// One thread writes one folded pixel. Several blocks share a row.
template <typename T>
__global__ void fold_kernel(unsigned blocks_per_row, unsigned size, const float* images, T* y) {
  const std::size_t row = blockIdx.x / blocks_per_row;
  const auto folded = static_cast<unsigned>(folded_size(size));
  const unsigned pixel = blockIdx.x % blocks_per_row * kThreads + threadIdx.x;
  if (pixel >= folded * folded) return;
  const float* const image = images + row * size * size * kColors;
  write_folded(pixel / folded, pixel % folded, size, y + (row * folded * folded + pixel) * kFoldedChannels,
               [&](int line, int column, int c) { return image[(line * size + column) * kColors + c]; });
}

/// The same for stored images. Each block draws the crop of its row once.
template <typename T>
__global__ void prepare_kernel(unsigned blocks_per_row, const std::uint8_t* images, ImageShape shape,
                               Preparation preparation, const std::int64_t* row_ids, const AugmentKey* key, T* y) {
  __shared__ Placement at;
  const std::size_t row = blockIdx.x / blocks_per_row;
  if (threadIdx.x == 0) at = placement(shape, preparation, *key, row_ids == nullptr ? 0 : row_ids[row]);
  __syncthreads();
  const auto crop = static_cast<unsigned>(preparation.crop);
  const auto folded = static_cast<unsigned>(folded_size(crop));
  const unsigned pixel = blockIdx.x % blocks_per_row * kThreads + threadIdx.x;
  if (pixel >= folded * folded) return;
  const auto width = static_cast<unsigned>(shape.width);
  const std::uint8_t* const corner =
      images + (row * shape.height * shape.width + at.top * shape.width + at.left) * kColors;
  write_folded(pixel / folded, pixel % folded, crop, y + (row * folded * folded + pixel) * kFoldedChannels,
               [&](int line, int column, int c) {
                 const unsigned from = at.is_mirrored ? crop - 1 - static_cast<unsigned>(column) : column;
                 const std::uint8_t stored = corner[(line * width + from) * kColors + c];
                 return prepared_pixel(preparation, stored, static_cast<std::size_t>(c));
               });
}

/// The place in the filter of an element of the folded filter, or -1 if it has none. Its line and column in the filter
/// are 2 a + b - 1.
__device__ int unfolded(unsigned element) {
  constexpr int kKernel = kStemKernel;
  const int channel = static_cast<int>(element % kFoldedChannels);
  const int tap = static_cast<int>(element / kFoldedChannels);
  const int line = 2 * (tap / static_cast<int>(kFoldedKernel)) + channel / kColors / 2 - 1;
  const int column = 2 * (tap % static_cast<int>(kFoldedKernel)) + channel / kColors % 2 - 1;
  if (channel >= 4 * kColors || line < 0 || column < 0) return -1;
  return (line * kKernel + column) * kColors + channel % kColors;
}

constexpr unsigned kFilterElements = kStemKernel * kStemKernel * kColors;
constexpr unsigned kFoldedElements = kFoldedKernel * kFoldedKernel * kFoldedChannels;

/// One block folds one filter.
template <typename T>
__global__ void fold_filter_kernel(const float* filter, T* wide) {
  for (unsigned element = threadIdx.x; element < kFoldedElements; element += kThreads) {
    const int from = unfolded(element);
    wide[blockIdx.x * kFoldedElements + element] =
        static_cast<T>(from < 0 ? 0.0F : filter[blockIdx.x * kFilterElements + static_cast<unsigned>(from)]);
  }
}
template <typename T>
__global__ void unfold_gradient_kernel(const T* wide, float* gradient) {
  for (unsigned element = threadIdx.x; element < kFoldedElements; element += kThreads) {
    const int to = unfolded(element);
    if (to < 0) continue;
    gradient[blockIdx.x * kFilterElements + static_cast<unsigned>(to)] =
        static_cast<float>(wide[blockIdx.x * kFoldedElements + element]);
  }
}

unsigned blocks_per_row(std::size_t size) {
  return static_cast<unsigned>((folded_size(size) * folded_size(size) + kThreads - 1) / kThreads);
}

}  // namespace

void prepare(CudaMath math, std::size_t rows, const std::uint8_t* images, const ImageShape& shape,
             const Preparation& preparation, const std::int64_t* row_ids, const AugmentKey* key, void* y,
             CUstream_st* stream) {
  if (rows == 0) return;
  const unsigned blocks = blocks_per_row(preparation.crop);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("preparing images", prepare_kernel<T>, static_cast<unsigned>(rows * blocks), kThreads, stream, blocks,
           images, shape, preparation, row_ids, key, static_cast<T*>(y));
  });
}

void fold(CudaMath math, std::size_t rows, std::size_t size, const float* images, void* y, CUstream_st* stream) {
  if (rows == 0) return;
  const unsigned blocks = blocks_per_row(size);
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("folding images", fold_kernel<T>, static_cast<unsigned>(rows * blocks), kThreads, stream, blocks,
           static_cast<unsigned>(size), images, static_cast<T*>(y));
  });
}

void fold_filter(CudaMath math, std::size_t count, const float* filter, void* folded, CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("folding filters", fold_filter_kernel<T>, static_cast<unsigned>(count), kThreads, stream, filter,
           static_cast<T*>(folded));
  });
}

void unfold_filter_gradient(CudaMath math, std::size_t count, const void* folded, float* gradient,
                            CUstream_st* stream) {
  with_element(math, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    launch("unfolding filters", unfold_gradient_kernel<T>, static_cast<unsigned>(count), kThreads, stream,
           static_cast<const T*>(folded), gradient);
  });
}

}  // namespace resnet::cuda

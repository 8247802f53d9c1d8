#include "demos/common/cuda_image_kernels.hpp"
#include "demos/common/cuda_launch.cuh"

namespace demos::cuda {

namespace {

constexpr std::size_t kThreads = std::size_t{kLanes} * kWarps;
constexpr std::size_t kMostBlocks = 65536;

__device__ std::size_t thread_in_block() { return std::size_t{threadIdx.y} * kLanes + threadIdx.x; }
__device__ std::size_t first_item() { return blockIdx.x * kThreads + thread_in_block(); }
__device__ std::size_t item_step() { return gridDim.x * kThreads; }
dim3 blocks_of_items(std::size_t items) { return {blocks_for(items, kThreads, kMostBlocks)}; }

/// to [channels_out, channels_in, taps] = from [taps, channels_in, channels_out].
template <typename T>
__global__ void channels_first_kernel(std::size_t taps, std::size_t in, std::size_t out, const T* from, T* to) {
  for (std::size_t i = first_item(); i < taps * in * out; i += item_step()) {
    const std::size_t o = i % out;
    const std::size_t c = i / out % in;
    to[(o * in + c) * taps + i / out / in] = from[i];
  }
}

template <typename T>
__global__ void channels_last_kernel(std::size_t taps, std::size_t in, std::size_t out, const T* from, T* to) {
  for (std::size_t i = first_item(); i < taps * in * out; i += item_step()) {
    const std::size_t o = i % out;
    const std::size_t c = i / out % in;
    to[i] = from[(o * in + c) * taps + i / out / in];
  }
}

template <typename T>
__global__ void image_bias_relu_kernel(std::size_t elements, std::size_t area, std::size_t channels, const T* bias,
                                       T* y) {
  for (std::size_t i = first_item(); i < elements; i += item_step()) {
    const T sum = y[i] + bias[i / area % channels];
    y[i] = sum < T{0} ? T{0} : sum;
  }
}

/// Block (c, s) computes channel c of the images s, s + gridDim.y, ...
template <typename T>
__global__ void image_bias_relu_backward_kernel(std::size_t rows, std::size_t area, const T* y, T* dy, T* dbias,
                                                Partials<T> partials) {
  const std::size_t channels = gridDim.x;
  const std::size_t channel = blockIdx.x;
  T sum{0};
  for (std::size_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::size_t image = (row * channels + channel) * area;
    for (std::size_t i = image + thread_in_block(); i < image + area; i += kThreads) {
      const T d = y[i] > T{0} ? dy[i] : T{0};
      dy[i] = d;
      sum += d;
    }
  }
  __shared__ T sums[kWarps];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) sums[threadIdx.y] = sum;
  __syncthreads();
  if (thread_in_block() == 0) {
    T total{0};
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
    partials.values[blockIdx.y * channels + channel] = total;
  }
  if (!is_last_block(partials.counters + channel, gridDim.y) || thread_in_block() != 0) return;
  T result{0};
  for (unsigned block = 0; block < gridDim.y; ++block) result += __ldcg(partials.values + block * channels + channel);
  dbias[channel] = result;
}

/// A window of one channel of one image: the offset of its top left element, the distances from there to the right and
/// the lower neighbour (0 if the edge cuts that neighbour off), and the offset of its maximum in the pooled image.
struct Window {
  std::size_t top_left;
  std::size_t right;
  std::size_t below;
  std::size_t pooled;
};

__device__ Window window_at(std::size_t i, const Pool2dShape& shape, Channels order) {
  const std::size_t width_out = (shape.width + 1) / 2;
  const std::size_t area_out = (shape.height + 1) / 2 * width_out;
  const std::size_t plane = i / area_out;  // row * channels + channel
  const std::size_t position = i % area_out;
  const std::size_t y = position / width_out * 2;
  const std::size_t x = position % width_out * 2;
  const std::size_t row = plane / shape.channels;
  const std::size_t channel = plane % shape.channels;
  const std::size_t pooled = order == Channels::kFirst ? i : (row * area_out + position) * shape.channels + channel;
  return {(plane * shape.height + y) * shape.width + x, std::size_t{x + 1 < shape.width ? 1U : 0U},
          y + 1 < shape.height ? shape.width : 0, pooled};
}

template <typename T>
__device__ std::size_t largest_of(const Window& window, const T* x) {
  const T* const corner = x + window.top_left;
  std::size_t best = 0;
  for (const std::size_t offset : {window.right, window.below, window.right + window.below}) {
    if (corner[offset] > corner[best]) best = offset;
  }
  return best;
}

template <typename T>
__global__ void max_pool_kernel(std::size_t windows, Pool2dShape shape, Channels channels, const T* x, T* y) {
  for (std::size_t i = first_item(); i < windows; i += item_step()) {
    const Window window = window_at(i, shape, channels);
    y[window.pooled] = x[window.top_left + largest_of(window, x)];
  }
}

template <typename T>
__global__ void max_pool_backward_kernel(std::size_t windows, Pool2dShape shape, Channels channels, const T* x,
                                         const T* dy, T* dx) {
  for (std::size_t i = first_item(); i < windows; i += item_step()) {
    const Window window = window_at(i, shape, channels);
    const std::size_t best = largest_of(window, x);
    // Windows do not overlap, and together they cover every pixel. So each pixel is written by its own window. The
    // zeros are written first.
    for (const std::size_t offset : {std::size_t{0}, window.right, window.below, window.right + window.below}) {
      dx[window.top_left + offset] = T{0};
    }
    dx[window.top_left + best] = dy[window.pooled];
  }
}

std::size_t windows_of(std::size_t rows, const Pool2dShape& shape) { return rows * shape.output_elements(); }

}  // namespace

template <typename T>
void filter_to_channels_first(const Conv2dShape& shape, const T* from, T* to, CUstream_st* stream) {
  const std::size_t taps = shape.kernel * shape.kernel;
  launch("filter_to_channels_first", channels_first_kernel<T>,
         blocks_of_items(taps * shape.channels_in * shape.channels_out), stream, taps, shape.channels_in,
         shape.channels_out, from, to);
}

template <typename T>
void filter_to_channels_last(const Conv2dShape& shape, const T* from, T* to, CUstream_st* stream) {
  const std::size_t taps = shape.kernel * shape.kernel;
  launch("filter_to_channels_last", channels_last_kernel<T>,
         blocks_of_items(taps * shape.channels_in * shape.channels_out), stream, taps, shape.channels_in,
         shape.channels_out, from, to);
}

template <typename T>
void image_bias_relu(std::size_t rows, const Conv2dShape& shape, const T* bias, T* y, CUstream_st* stream) {
  if (rows == 0) return;
  const std::size_t elements = rows * shape.output_elements();
  launch("image_bias_relu", image_bias_relu_kernel<T>, blocks_of_items(elements), stream, elements, shape.positions(),
         shape.channels_out, bias, y);
}

template <typename T>
void image_bias_relu_backward(std::size_t rows, const Conv2dShape& shape, const T* y, T* dy, T* dbias,
                              const Partials<T>& partials, CUstream_st* stream) {
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(shape.channels_out), blocks_for(rows, 1, kMostRowBlocks));
  launch("image_bias_relu_backward", image_bias_relu_backward_kernel<T>, grid, stream, rows, shape.positions(), y, dy,
         dbias, partials);
}

template <typename T>
void max_pool_forward(std::size_t rows, const Pool2dShape& shape, Channels channels, const T* x, T* y,
                      CUstream_st* stream) {
  if (rows == 0) return;
  const std::size_t windows = windows_of(rows, shape);
  launch("max_pool_forward", max_pool_kernel<T>, blocks_of_items(windows), stream, windows, shape, channels, x, y);
}

template <typename T>
void max_pool_backward(std::size_t rows, const Pool2dShape& shape, Channels channels, const T* x, const T* dy, T* dx,
                       CUstream_st* stream) {
  if (rows == 0) return;
  const std::size_t windows = windows_of(rows, shape);
  launch("max_pool_backward", max_pool_backward_kernel<T>, blocks_of_items(windows), stream, windows, shape, channels,
         x, dy, dx);
}

#define DEMOS_INSTANTIATE(T)                                                                                       \
  template void filter_to_channels_first<T>(const Conv2dShape&, const T*, T*, CUstream_st*);                       \
  template void filter_to_channels_last<T>(const Conv2dShape&, const T*, T*, CUstream_st*);                        \
  template void image_bias_relu<T>(std::size_t, const Conv2dShape&, const T*, T*, CUstream_st*);                   \
  template void image_bias_relu_backward<T>(std::size_t, const Conv2dShape&, const T*, T*, T*, const Partials<T>&, \
                                            CUstream_st*);                                                         \
  template void max_pool_forward<T>(std::size_t, const Pool2dShape&, Channels, const T*, T*, CUstream_st*);        \
  template void max_pool_backward<T>(std::size_t, const Pool2dShape&, Channels, const T*, const T*, T*, CUstream_st*);
DEMOS_INSTANTIATE(float)
DEMOS_INSTANTIATE(double)
#undef DEMOS_INSTANTIATE

}  // namespace demos::cuda

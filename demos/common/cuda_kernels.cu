#include "demos/common/cuda_kernels.hpp"

#include <cmath>

#include "demos/common/cuda_launch.cuh"
#include "demos/common/cuda_quad.cuh"

namespace demos::cuda {

namespace {

constexpr std::size_t kMostGridRows = 1024;

/// This thread's place in a tile: a quad of units, and the first of its rows.
struct TilePlace {
  std::size_t unit;
  std::size_t row;
  std::size_t row_step;
};

__device__ TilePlace place_in_tile() {
  return {(std::size_t{blockIdx.x} * kLanes + threadIdx.x) * kQuad, std::size_t{blockIdx.y} * kWarps + threadIdx.y,
          std::size_t{gridDim.y} * kWarps};
}

dim3 tiles(std::size_t rows, std::size_t units, std::size_t most_row_blocks) {
  return {blocks_for(units, kLanes * kQuad, units), blocks_for(rows, kWarps, most_row_blocks)};
}

template <bool kWhole, typename T>
__global__ void dropout_kernel(std::size_t rows, std::size_t units, DropoutMask mask, const T* x, T* y) {
  const TilePlace at = place_in_tile();
  if (at.unit >= units) return;
  for (std::size_t row = at.row; row < rows; row += at.row_step) {
    const std::size_t place = row * units + at.unit;
    Quad<T> quad = load<kWhole>(x + place, units - at.unit);
    drop(quad, mask, row, at.unit);
    store<kWhole>(y + place, quad, units - at.unit);
  }
}

template <bool kWhole, typename T>
__global__ void bias_relu_kernel(std::size_t rows, std::size_t units, DropoutMask mask, const T* bias, T* y) {
  const TilePlace at = place_in_tile();
  if (at.unit >= units) return;
  const Quad<T> shift = load<kWhole>(bias + at.unit, units - at.unit);
  for (std::size_t row = at.row; row < rows; row += at.row_step) {
    T* const place = y + row * units + at.unit;
    Quad<T> quad = load<kWhole>(place, units - at.unit);
    for (std::size_t i = 0; i < kQuad; ++i) {
      const T sum = quad.v[i] + shift.v[i];
      quad.v[i] = sum < T{0} ? T{0} : sum;  // a NaN stays NaN, so that users notice it
    }
    if (mask.key != nullptr) drop(quad, mask, row, at.unit);
    store<kWhole>(place, quad, units - at.unit);
  }
}

// ---- backward -------------------------------------------------------------------------------------------------

/// Adds up a block's sums of its columns over its warps. Warp 0 returns the total.
template <typename T>
__device__ Quad<T> sum_over_warps(const Quad<T>& sum) {
  __shared__ T sums[kWarps][kLanes * kQuad];
  for (std::size_t i = 0; i < kQuad; ++i) sums[threadIdx.y][threadIdx.x * kQuad + i] = sum.v[i];
  __syncthreads();
  Quad<T> total{};
  if (threadIdx.y == 0) {
    for (int warp = 0; warp < kWarps; ++warp) {
      for (std::size_t i = 0; i < kQuad; ++i) total.v[i] += sums[warp][threadIdx.x * kQuad + i];
    }
  }
  return total;
}

template <bool kWhole, typename T>
__global__ void bias_relu_backward_kernel(std::size_t rows, std::size_t units, T factor, const T* y, T* dy, T* dbias,
                                          Partials<T> partials) {
  const TilePlace at = place_in_tile();
  const std::size_t count = at.unit < units ? units - at.unit : 0;
  Quad<T> sum{};
  for (std::size_t row = at.row; row < rows && count > 0; row += at.row_step) {
    const std::size_t place = row * units + at.unit;
    const Quad<T> output = load<kWhole>(y + place, count);
    Quad<T> quad = load<kWhole>(dy + place, count);
    for (std::size_t i = 0; i < kQuad; ++i) {
      quad.v[i] = output.v[i] > T{0} ? quad.v[i] * factor : T{0};
      sum.v[i] += quad.v[i];
    }
    store<kWhole>(dy + place, quad, count);
  }
  const Quad<T> total = sum_over_warps(sum);
  if (threadIdx.y == 0 && count > 0) store<false>(partials.values + blockIdx.y * units + at.unit, total, count);
  if (!is_last_block(partials.counters + blockIdx.x, gridDim.y)) return;
  // The last block of these columns adds up the sums of all their blocks, from the first rows to the last.
  const std::size_t thread = threadIdx.y * kLanes + threadIdx.x;
  const std::size_t unit = std::size_t{blockIdx.x} * kLanes * kQuad + thread;
  if (thread >= kLanes * kQuad || unit >= units) return;
  T result{0};
  for (unsigned block = 0; block < gridDim.y; ++block) result += __ldcg(partials.values + block * units + unit);
  dbias[unit] = result;
}

// ---- loss -----------------------------------------------------------------------------------------------------

constexpr int kMostClasses = 256;  // labels are uint8
constexpr int kClassesPerLane = kMostClasses / kLanes;

/// Gives every lane the largest of the warp's values, and the first place that has this value.
template <typename T>
__device__ void warp_argmax(T& value, int& place) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(0xFFFFFFFFU, value, distance);
    const int other_place = __shfl_xor_sync(0xFFFFFFFFU, place, distance);
    if (other > value || (other == value && other_place < place)) {
      value = other;
      place = other_place;
    }
  }
}

template <typename T>
struct RowResult {
  double loss;
  int is_correct;
};

/// One warp computes one row: lane l has the classes l, l + 32, ... Adds the row's dlogits to `sums`.
template <typename T>
__device__ RowResult<T> softmax_row(int classes, int label, const T* logits, const T* bias, T weight, T* dlogits,
                                    T (&sums)[kClassesPerLane]) {
  const int lane = static_cast<int>(threadIdx.x);
  T values[kClassesPerLane];
  T largest = -INFINITY;
  int best = kMostClasses;
  for (int k = 0; k < kClassesPerLane; ++k) {
    const int c = lane + k * kLanes;
    values[k] = c < classes ? logits[c] + bias[c] : T(-INFINITY);
    if (values[k] > largest) {
      largest = values[k];
      best = c;
    }
  }
  warp_argmax(largest, best);
  T exps[kClassesPerLane];
  T sum{0};
  T of_label{0};
  for (int k = 0; k < kClassesPerLane; ++k) {
    const int c = lane + k * kLanes;
    exps[k] = c < classes ? exp(values[k] - largest) : T{0};
    sum += exps[k];
    if (c == label) of_label = values[k];
  }
  sum = warp_sum(sum);
  of_label = warp_sum(of_label);
  for (int k = 0; k < kClassesPerLane && dlogits != nullptr; ++k) {
    const int c = lane + k * kLanes;
    if (c >= classes) break;
    const T d = weight * exps[k] / sum - (c == label ? weight : T{0});
    dlogits[c] = d;
    sums[k] += d;
  }
  const double loss = label < classes ? static_cast<double>(log(sum) + (largest - of_label)) : double{NAN};
  return {loss, best == label ? 1 : 0};
}

/// Adds up the sums of all blocks. The last block calls this.
template <typename T>
__device__ void finish_classes(int classes, T* dbias, const LossPlace& loss, const Partials<T>& partials) {
  const int thread = static_cast<int>(threadIdx.y * kLanes + threadIdx.x);
  for (int c = thread; c < classes && dbias != nullptr; c += kLanes * kWarps) {
    T total{0};
    for (unsigned block = 0; block < gridDim.x; ++block) {
      total += __ldcg(partials.values + static_cast<std::size_t>(block) * classes + c);
    }
    dbias[c] = total;
  }
  if (threadIdx.y == 0) finish_loss(loss, partials, gridDim.x);
}

template <typename T>
__global__ void softmax_kernel(std::size_t rows, int classes, const std::uint8_t* labels, const T* logits,
                               const T* bias, T* dlogits, T* dbias, LossPlace loss, Partials<T> partials) {
  __shared__ double losses[kWarps];
  __shared__ int corrects[kWarps];
  __shared__ T column_sums[kWarps][kMostClasses];
  const T weight = T{1} / static_cast<T>(loss.of_rows);
  T sums[kClassesPerLane] = {};
  double loss_sum = 0;
  int correct = 0;
  for (std::size_t row = std::size_t{blockIdx.x} * kWarps + threadIdx.y; row < rows; row += gridDim.x * kWarps) {
    T* const dlogits_row = dlogits == nullptr ? nullptr : dlogits + row * classes;
    const RowResult<T> result =
        softmax_row(classes, static_cast<int>(labels[row]), logits + row * classes, bias, weight, dlogits_row, sums);
    loss_sum += result.loss;
    correct += result.is_correct;
  }
  for (int k = 0; k < kClassesPerLane; ++k) column_sums[threadIdx.y][threadIdx.x + k * kLanes] = sums[k];
  if (threadIdx.x == 0) {
    losses[threadIdx.y] = loss_sum;
    corrects[threadIdx.y] = correct;
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y * kLanes + threadIdx.x);
  if (thread < classes && dbias != nullptr) {
    T total{0};
    for (int warp = 0; warp < kWarps; ++warp) total += column_sums[warp][thread];
    partials.values[static_cast<std::size_t>(blockIdx.x) * classes + thread] = total;
  }
  if (thread == 0) {
    partials.losses[blockIdx.x] = 0;
    partials.correct[blockIdx.x] = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      partials.losses[blockIdx.x] += losses[warp];
      partials.correct[blockIdx.x] += corrects[warp];
    }
  }
  if (is_last_block(partials.counters, gridDim.x)) finish_classes(classes, dbias, loss, partials);
}

// ---- rows -----------------------------------------------------------------------------------------------------

/// A warp copies a row.
template <typename E>
__global__ void pick_rows_kernel(std::size_t rows, std::size_t width, const std::int64_t* ids, const E* from, E* to) {
  const std::size_t step = std::size_t{gridDim.x} * kWarps;
  for (std::size_t row = std::size_t{blockIdx.x} * kWarps + threadIdx.y; row < rows; row += step) {
    const E* const source = from + static_cast<std::size_t>(ids[row]) * width;
    for (std::size_t i = threadIdx.x; i < width; i += kLanes) to[row * width + i] = source[i];
  }
}

// ---- update ---------------------------------------------------------------------------------------------------

template <bool kWhole, typename T>
__global__ void nesterov_kernel(std::size_t count, T* params, T* velocity, const T* gradient, const double* rate,
                                const double* momentum) {
  const T r = static_cast<T>(*rate);
  const T m = static_cast<T>(*momentum);
  const std::size_t thread = (std::size_t{blockIdx.x} * kWarps + threadIdx.y) * kLanes + threadIdx.x;
  const std::size_t step = std::size_t{gridDim.x} * kWarps * kLanes * kQuad;
  for (std::size_t i = thread * kQuad; i < count; i += step) {
    const bool is_whole = kWhole && count - i >= kQuad;
    const Quad<T> g = is_whole ? load<true>(gradient + i, kQuad) : load<false>(gradient + i, count - i);
    Quad<T> v = is_whole ? load<true>(velocity + i, kQuad) : load<false>(velocity + i, count - i);
    Quad<T> p = is_whole ? load<true>(params + i, kQuad) : load<false>(params + i, count - i);
    for (std::size_t k = 0; k < kQuad; ++k) {
      const T descent = r * g.v[k];
      v.v[k] = m * v.v[k] - descent;
      p.v[k] += m * v.v[k] - descent;
    }
    if (is_whole) {
      store<true>(velocity + i, v, kQuad);
      store<true>(params + i, p, kQuad);
    } else {
      store<false>(velocity + i, v, count - i);
      store<false>(params + i, p, count - i);
    }
  }
}

}  // namespace

// ---- launches -------------------------------------------------------------------------------------------------

template <typename T>
void dropout(std::size_t rows, std::size_t units, const DropoutMask& mask, const T* x, T* y, CUstream_st* stream) {
  if (rows == 0) return;
  const auto kernel = has_whole_quads(units, x, y) ? dropout_kernel<true, T> : dropout_kernel<false, T>;
  launch("dropout", kernel, tiles(rows, units, kMostGridRows), stream, rows, units, mask, x, y);
}

template <typename T>
void bias_relu(std::size_t rows, std::size_t units, const DropoutMask& mask, const T* bias, T* y, CUstream_st* stream) {
  if (rows == 0) return;
  const auto kernel = has_whole_quads(units, bias, y) ? bias_relu_kernel<true, T> : bias_relu_kernel<false, T>;
  launch("bias_relu", kernel, tiles(rows, units, kMostGridRows), stream, rows, units, mask, bias, y);
}

template <typename T>
void bias_relu_backward(std::size_t rows, std::size_t units, double rate, const T* y, T* dy, T* dbias,
                        const Partials<T>& partials, CUstream_st* stream) {
  if (rows == 0) return;
  // Enough blocks to fill a device, but few enough that the last one adds up their sums quickly.
  constexpr std::size_t kRowsPerBlock = 4 * kWarps;
  constexpr std::size_t kMostBlocks = 32;
  static_assert(kMostBlocks <= kMostRowBlocks);
  const dim3 grid{blocks_for(units, kLanes * kQuad, units), blocks_for(rows, kRowsPerBlock, kMostBlocks)};
  const auto kernel =
      has_whole_quads(units, y, dy) ? bias_relu_backward_kernel<true, T> : bias_relu_backward_kernel<false, T>;
  launch("bias_relu_backward", kernel, grid, stream, rows, units, static_cast<T>(1 / (1 - rate)), y, dy, dbias,
         partials);
}

template <typename T>
void softmax_cross_entropy(std::size_t rows, std::size_t classes, const std::uint8_t* labels, const T* logits,
                           const T* bias, T* dlogits, T* dbias, const LossPlace& loss, const Partials<T>& partials,
                           CUstream_st* stream) {
  if (rows == 0) return;
  launch("softmax_cross_entropy", softmax_kernel<T>, dim3(blocks_for(rows, kWarps, kMostRowBlocks)), stream, rows,
         static_cast<int>(classes), labels, logits, bias, dlogits, dbias, loss, partials);
}

template <typename E>
void pick_rows(std::size_t rows, std::size_t width, const std::int64_t* ids, const E* from, E* to,
               CUstream_st* stream) {
  if (rows == 0) return;
  launch("pick_rows", pick_rows_kernel<E>, dim3(blocks_for(rows, kWarps, kMostGridRows)), stream, rows, width, ids,
         from, to);
}

template <typename T>
void nesterov_update(std::size_t count, T* params, T* velocity, const T* gradient, const double* rate,
                     const double* momentum, CUstream_st* stream) {
  if (count == 0) return;
  const auto kernel =
      has_whole_quads(0, params, velocity, gradient) ? nesterov_kernel<true, T> : nesterov_kernel<false, T>;
  launch("nesterov_update", kernel, dim3(blocks_for(count, kLanes * kWarps * kQuad, 4096)), stream, count, params,
         velocity, gradient, rate, momentum);
}

#define DEMOS_INSTANTIATE(T)                                                                                        \
  template void dropout<T>(std::size_t, std::size_t, const DropoutMask&, const T*, T*, CUstream_st*);               \
  template void bias_relu<T>(std::size_t, std::size_t, const DropoutMask&, const T*, T*, CUstream_st*);             \
  template void bias_relu_backward<T>(std::size_t, std::size_t, double, const T*, T*, T*, const Partials<T>&,       \
                                      CUstream_st*);                                                                \
  template void softmax_cross_entropy<T>(std::size_t, std::size_t, const std::uint8_t*, const T*, const T*, T*, T*, \
                                         const LossPlace&, const Partials<T>&, CUstream_st*);                       \
  template void pick_rows<T>(std::size_t, std::size_t, const std::int64_t*, const T*, T*, CUstream_st*);            \
  template void nesterov_update<T>(std::size_t, T*, T*, const T*, const double*, const double*, CUstream_st*);
DEMOS_INSTANTIATE(float)
DEMOS_INSTANTIATE(double)
#undef DEMOS_INSTANTIATE
template void pick_rows(std::size_t, std::size_t, const std::int64_t*, const std::uint8_t*, std::uint8_t*,
                        CUstream_st*);

}  // namespace demos::cuda

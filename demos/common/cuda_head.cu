#include <cmath>

#include "demos/common/cuda_kernels.hpp"
#include "demos/common/cuda_launch.cuh"
#include "demos/common/cuda_quad.cuh"

namespace demos::cuda {

namespace {

constexpr int kClasses = 10;
/// The number of quads of a row that one lane keeps in registers. It is limited so that the weights fit the 48 KiB of
/// shared memory that every block may have.
template <typename T>
constexpr int kQuads = sizeof(T) == sizeof(float) ? 8 : 4;
template <typename T>
constexpr std::size_t kMostUnits = kQuads<T> * kLanes * kQuad;

template <typename T>
struct HeadMemory {
  static constexpr std::size_t kStride = kMostUnits<T> + kQuad;  // not a multiple of 32, so classes use different banks
  static constexpr std::size_t kWeights = kClasses * kStride;
  /// First the weights [classes, units], while rows are computed. Then the sums of the warps [kWarps, units].
  alignas(16) T weights[kWeights];
  alignas(16) T hidden_bias[kMostUnits<T>];
  T class_sums[kWarps][kClasses];
  double losses[kWarps];
  int correct[kWarps];
};
static_assert(sizeof(HeadMemory<float>) <= 48 * 1024 - 16 && sizeof(HeadMemory<double>) <= 48 * 1024 - 16);
static_assert(kWarps <= kClasses, "the warps' sums take the place of the weights");

/// The sums of one warp over its rows. `hidden` has the lane's quads of the hidden units. `classes` has the classes,
/// and is the same on all lanes.
template <typename T>
struct WarpSums {
  Quad<T> hidden[kQuads<T>] = {};
  T classes[kClasses] = {};
  double loss = 0;
  int correct = 0;
};

__device__ int quads_of(std::size_t units) { return static_cast<int>(units / kQuad); }
__device__ int quad_of_lane(int i) { return static_cast<int>(threadIdx.x) + i * kLanes; }

template <typename T>
__device__ void load_weights(const Head<T>& head, HeadMemory<T>& memory) {
  // The indices have 32 bits, because most of the time here would otherwise go into divisions by the number of classes.
  const unsigned thread = threadIdx.y * kLanes + threadIdx.x;
  constexpr unsigned kThreads = kLanes * kWarps;
  const unsigned all = static_cast<unsigned>(head.units) * kClasses;
  const auto put = [&](unsigned i, T weight) {
    memory.weights[i % kClasses * static_cast<unsigned>(HeadMemory<T>::kStride) + i / kClasses] = weight;
  };
  if (reinterpret_cast<std::uintptr_t>(head.weights) % alignof(Quad<T>) == 0) {
#pragma unroll 4
    for (unsigned i = thread * kQuad; i < all; i += kThreads * kQuad) {
      const Quad<T> quad = load<true>(head.weights + i, kQuad);
      for (unsigned j = 0; j < kQuad; ++j) put(i + j, quad.v[j]);
    }
  } else {
    for (unsigned i = thread; i < all; i += kThreads) put(i, head.weights[i]);
  }
  for (unsigned i = thread; i < head.units; i += kThreads) memory.hidden_bias[i] = head.hidden_bias[i];
  __syncthreads();
}

/// The hidden layer's output for one row, and the logits without bias.
template <typename T>
__device__ void forward_row(const Head<T>& head, const HeadMemory<T>& memory, std::size_t row,
                            Quad<T> (&hidden)[kQuads<T>], T (&logits)[kClasses]) {
#pragma unroll
  for (int c = 0; c < kClasses; ++c) logits[c] = T{0};
#pragma unroll
  for (int i = 0; i < kQuads<T>; ++i) {
    hidden[i] = {};
    const int q = quad_of_lane(i);
    if (q >= quads_of(head.units)) continue;
    T* const place = head.hidden + row * head.units + q * kQuad;
    Quad<T> quad = load<true>(place, kQuad);
    const Quad<T> shift = load<true>(memory.hidden_bias + q * kQuad, kQuad);
    for (std::size_t k = 0; k < kQuad; ++k) {
      const T sum = quad.v[k] + shift.v[k];
      quad.v[k] = sum < T{0} ? T{0} : sum;
    }
    if (head.mask.key != nullptr) drop(quad, head.mask, row, q * kQuad);
    store<true>(place, quad, kQuad);
    hidden[i] = quad;
#pragma unroll
    for (int c = 0; c < kClasses; ++c) {
      const Quad<T> w = load<true>(memory.weights + c * HeadMemory<T>::kStride + q * kQuad, kQuad);
      for (std::size_t k = 0; k < kQuad; ++k) logits[c] += quad.v[k] * w.v[k];
    }
  }
#pragma unroll
  for (int c = 0; c < kClasses; ++c) logits[c] = warp_sum(logits[c]);
}

/// Replaces the logits by their gradient, which is the same on all lanes. Adds the row's loss to `sums`.
template <typename T>
__device__ void softmax_in_place(const Head<T>& head, std::size_t row, T weight, T (&logits)[kClasses],
                                 WarpSums<T>& sums) {
  const int label = static_cast<int>(head.labels[row]);
  T largest = -INFINITY;
  T of_label{0};
  int best = kClasses;
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    logits[c] += head.bias[c];
    if (c == label) of_label = logits[c];
    if (logits[c] > largest) {
      largest = logits[c];
      best = c;
    }
  }
  T sum{0};
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    logits[c] = exp(logits[c] - largest);
    sum += logits[c];
  }
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    logits[c] = weight * logits[c] / sum - (c == label ? weight : T{0});
    sums.classes[c] += logits[c];
  }
  sums.loss += label < kClasses ? static_cast<double>(log(sum) + (largest - of_label)) : double{NAN};
  sums.correct += best == label ? 1 : 0;
}

template <typename T>
__device__ void backward_row(const Head<T>& head, const HeadMemory<T>& memory, std::size_t row, T factor,
                             const Quad<T> (&hidden)[kQuads<T>], const T (&dlogits)[kClasses], WarpSums<T>& sums) {
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    if (static_cast<int>(threadIdx.x) == c) head.dlogits[row * kClasses + c] = dlogits[c];
  }
#pragma unroll
  for (int i = 0; i < kQuads<T>; ++i) {
    const int q = quad_of_lane(i);
    if (q >= quads_of(head.units)) continue;
    Quad<T> d{};
#pragma unroll
    for (int c = 0; c < kClasses; ++c) {
      const Quad<T> w = load<true>(memory.weights + c * HeadMemory<T>::kStride + q * kQuad, kQuad);
      for (std::size_t k = 0; k < kQuad; ++k) d.v[k] += dlogits[c] * w.v[k];
    }
    for (std::size_t k = 0; k < kQuad; ++k) {
      d.v[k] = hidden[i].v[k] > T{0} ? d.v[k] * factor : T{0};
      sums.hidden[i].v[k] += d.v[k];
    }
    store<true>(head.dhidden + row * head.units + q * kQuad, d, kQuad);
  }
}

/// Adds up the sums of the block's warps, in the order of the warps, into the block's row of the partial sums. The
/// units come first, then the classes.
template <typename T>
__device__ void sum_of_block(const Head<T>& head, HeadMemory<T>& memory, const WarpSums<T>& sums,
                             const Partials<T>& partials) {
  __syncthreads();  // all warps have finished with the weights; the sums take their place in shared memory
#pragma unroll
  for (int i = 0; i < kQuads<T>; ++i) {
    const int q = quad_of_lane(i);
    if (q < quads_of(head.units)) {
      store<true>(memory.weights + threadIdx.y * head.units + q * kQuad, sums.hidden[i], kQuad);
    }
  }
  if (threadIdx.x == 0) {
    for (int c = 0; c < kClasses; ++c) memory.class_sums[threadIdx.y][c] = sums.classes[c];
    memory.losses[threadIdx.y] = sums.loss;
    memory.correct[threadIdx.y] = sums.correct;
  }
  __syncthreads();
  const std::size_t thread = threadIdx.y * kLanes + threadIdx.x;
  T* const values = partials.values + blockIdx.x * (head.units + kClasses);
  for (std::size_t unit = thread; unit < head.units; unit += kLanes * kWarps) {
    T total{0};
    for (int warp = 0; warp < kWarps; ++warp) total += memory.weights[warp * head.units + unit];
    values[unit] = total;
  }
  if (thread < kClasses) {
    T total{0};
    for (int warp = 0; warp < kWarps; ++warp) total += memory.class_sums[warp][thread];
    values[head.units + thread] = total;
  }
  if (thread != 0) return;
  double loss = 0;
  std::int64_t correct = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    loss += memory.losses[warp];
    correct += memory.correct[warp];
  }
  partials.losses[blockIdx.x] = loss;
  partials.correct[blockIdx.x] = correct;
}

/// Adds up the sums of all blocks. The last block calls this.
template <typename T>
__device__ void finish(const Head<T>& head, const LossPlace& place, const Partials<T>& partials) {
  const std::size_t thread = threadIdx.y * kLanes + threadIdx.x;
  const std::size_t columns = head.units + kClasses;
  for (std::size_t column = thread; column < columns; column += kLanes * kWarps) {
    T total{0};
#pragma unroll 8
    for (unsigned block = 0; block < gridDim.x; ++block) total += __ldcg(partials.values + block * columns + column);
    if (column < head.units) head.dhidden_bias[column] = total;
    else head.dbias[column - head.units] = total;
  }
  if (threadIdx.y == 0) finish_loss(place, partials, gridDim.x);
}

template <typename T>
__global__ void head_kernel(Head<T> head, LossPlace place, Partials<T> partials) {
  __shared__ HeadMemory<T> memory;
  load_weights(head, memory);
  const T weight = T{1} / static_cast<T>(place.of_rows);
  const T factor = head.mask.key == nullptr ? T{1} : static_cast<T>(1 / (1 - head.mask.rate));
  WarpSums<T> sums;
  Quad<T> hidden[kQuads<T>];
  T logits[kClasses];
  for (std::size_t row = blockIdx.x * kWarps + threadIdx.y; row < head.rows; row += gridDim.x * kWarps) {
    forward_row(head, memory, row, hidden, logits);
    softmax_in_place(head, row, weight, logits, sums);
    backward_row(head, memory, row, factor, hidden, logits, sums);
  }
  sum_of_block(head, memory, sums, partials);
  if (is_last_block(partials.counters, gridDim.x)) finish(head, place, partials);
}

}  // namespace

template <typename T>
bool can_fuse_head(std::size_t units, std::size_t classes) {
  return classes == kClasses && units % kQuad == 0 && units <= kMostUnits<T>;
}

template <typename T>
void train_head(const Head<T>& head, const LossPlace& loss, const Partials<T>& partials, CUstream_st* stream) {
  if (head.rows == 0) return;
  launch("train_head", head_kernel<T>, dim3(blocks_for(head.rows, kWarps, kMostRowBlocks)), stream, head, loss,
         partials);
}

template bool can_fuse_head<float>(std::size_t, std::size_t);
template bool can_fuse_head<double>(std::size_t, std::size_t);
template void train_head<float>(const Head<float>&, const LossPlace&, const Partials<float>&, CUstream_st*);
template void train_head<double>(const Head<double>&, const LossPlace&, const Partials<double>&, CUstream_st*);

}  // namespace demos::cuda

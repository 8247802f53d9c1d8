#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "libtorch/cuda/cross_entropy_kernels.hpp"

namespace syncrun::libtorch::detail::kernels {

namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 512;  // of a row
constexpr int kSumThreads = 1024;
constexpr std::int64_t kPacksPerThread = 4;  // at least, if a row has so many

/// The number of scores in 16 bytes.
template <class T>
constexpr int kWide = 16 / sizeof(T);

__device__ float exp_of(float x) { return __expf(x); }
__device__ double exp_of(double x) { return exp(x); }
__device__ float log_of(float x) { return logf(x); }
__device__ double log_of(double x) { return log(x); }
__device__ float max_of(float a, float b) { return fmaxf(a, b); }
__device__ double max_of(double a, double b) { return fmax(a, b); }

/// The sum of exp(x) of the numbers x seen so far, as sum * exp(most). `most` is the largest of them that is a number.
template <class A>
struct ExpSum {
  A most = -std::numeric_limits<A>::infinity();
  A sum = 0;

  /// What to subtract from numbers up to `largest`. If all are -infinity, their differences would not be numbers.
  static __device__ A base_of(A largest) { return largest == -std::numeric_limits<A>::infinity() ? A{0} : largest; }
  __device__ void add(const ExpSum& other) {
    const A largest = max_of(most, other.most);
    const A base = base_of(largest);
    sum = sum * exp_of(most - base) + other.sum * exp_of(other.most - base);
    most = largest;
  }
  template <class T, int kWidth>
  __device__ void add(const Pack<T, kWidth>& pack) {
    A largest = most;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = max_of(largest, static_cast<A>(pack.values[i]));
    const A base = base_of(largest);
    sum *= exp_of(most - base);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += exp_of(static_cast<A>(pack.values[i]) - base);
    most = largest;
  }
};

/// Adds up those of all threads of the block. The result is valid in thread 0.
template <class A>
__device__ ExpSum<A> sum_of_block(ExpSum<A> own) {
  __shared__ ExpSum<A> sums[kWarp];
  const int threads = static_cast<int>(blockDim.x);
  const auto add_warp = [&own] {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      own.add(ExpSum<A>{__shfl_down_sync(0xffffffffU, own.most, distance),
                        __shfl_down_sync(0xffffffffU, own.sum, distance)});
    }
  };
  add_warp();
  if (threads == kWarp) return own;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarp == 0) sums[thread / kWarp] = own;
  __syncthreads();
  if (thread >= kWarp) return own;
  own = thread < threads / kWarp ? sums[thread] : ExpSum<A>{};
  add_warp();
  return own;
}

/// One block for each row.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    loss_kernel(const T* scores, const std::int64_t* targets, std::int64_t classes, std::int64_t ignore_index,
                Sum<T>* sums, Sum<T>* losses) {
  const std::int64_t row = blockIdx.x;
  const T* const own = scores + row * classes;
  const auto* const packs = reinterpret_cast<const Pack<T, kWidth>*>(own);
  ExpSum<Sum<T>> sum;
  for (std::int64_t i = threadIdx.x; i < classes / kWidth; i += blockDim.x) sum.add(packs[i]);
  sum = sum_of_block(sum);
  if (threadIdx.x != 0) return;
  // Their sum would lose the digits of the second one if the scores are large.
  const Sum<T> log_sum = log_of(sum.sum);
  sums[2 * row] = sum.most;
  sums[2 * row + 1] = log_sum;
  const std::int64_t target = targets[row];
  if (target == ignore_index) losses[row] = 0;
  else if (target < 0 || target >= classes) losses[row] = std::numeric_limits<Sum<T>>::quiet_NaN();
  else losses[row] = log_sum - (static_cast<Sum<T>>(own[target]) - sum.most);
}

/// One block. The order of the additions depends on the number of rows only.
template <class A>
__global__ void __launch_bounds__(kSumThreads)
    mean_kernel(const A* losses, const std::int64_t* targets, std::int64_t rows, std::int64_t ignore_index, A* loss,
                A* count) {
  __shared__ double sums[kSumThreads];
  __shared__ std::int64_t counts[kSumThreads];
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  std::int64_t counted = 0;
  for (std::int64_t row = thread; row < rows; row += kSumThreads) {
    sum += static_cast<double>(losses[row]);
    if (targets[row] != ignore_index) ++counted;
  }
  sums[thread] = sum;
  counts[thread] = counted;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      sums[thread] += sums[thread + half];
      counts[thread] += counts[thread + half];
    }
    __syncthreads();
  }
  if (thread != 0) return;
  *loss = static_cast<A>(sums[0] / static_cast<double>(counts[0]));
  *count = static_cast<A>(counts[0]);
}

/// One block for each row.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    gradient_kernel(const T* scores, const std::int64_t* targets, std::int64_t classes, std::int64_t ignore_index,
                    const Sum<T>* sums, const Sum<T>* upstream, const Sum<T>* count, T* gradient) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = targets[row];
  const bool counts = target != ignore_index;
  const bool is_class = target >= 0 && target < classes;
  const A factor = is_class ? *upstream / *count : std::numeric_limits<A>::quiet_NaN();
  const A most = sums[2 * row];
  const A log_sum = sums[2 * row + 1];
  const auto* const from = reinterpret_cast<const Pack<T, kWidth>*>(scores + row * classes);
  auto* const to = reinterpret_cast<Pack<T, kWidth>*>(gradient + row * classes);
  for (std::int64_t i = threadIdx.x; i < classes / kWidth; i += blockDim.x) {
    Pack<T, kWidth> pack = from[i];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A share =
          exp_of(static_cast<A>(pack.values[k]) - most - log_sum) - (i * kWidth + k == target ? A{1} : A{0});
      pack.values[k] = static_cast<T>(counts ? share * factor : A{0});
    }
    to[i] = pack;
  }
}

/// Whole warps, and no more than the row has work for.
int threads_for(std::int64_t packs) {
  const std::int64_t warps = (packs + kPacksPerThread * kWarp - 1) / (kPacksPerThread * kWarp);
  return static_cast<int>(std::min<std::int64_t>(warps * kWarp, kMostThreads));
}

template <class T>
bool is_wide(const CrossEntropyRows& rows, const void* other) {
  return rows.classes % kWide<T> == 0 && begin_at_multiples(16, rows.scores, other);
}

template <class T, int kWidth>
void launch_loss(const CrossEntropyRows& rows, void* losses, cudaStream_t stream) {
  loss_kernel<T, kWidth><<<static_cast<unsigned>(rows.rows), threads_for(rows.classes / kWidth), 0, stream>>>(
      static_cast<const T*>(rows.scores), rows.targets, rows.classes, rows.ignore_index,
      static_cast<Sum<T>*>(rows.sums), static_cast<Sum<T>*>(losses));
}

template <class T, int kWidth>
void launch_gradient(const CrossEntropyRows& rows, const void* upstream, const void* count, void* gradient,
                     cudaStream_t stream) {
  gradient_kernel<T, kWidth><<<static_cast<unsigned>(rows.rows), threads_for(rows.classes / kWidth), 0, stream>>>(
      static_cast<const T*>(rows.scores), rows.targets, rows.classes, rows.ignore_index,
      static_cast<const Sum<T>*>(rows.sums), static_cast<const Sum<T>*>(upstream), static_cast<const Sum<T>*>(count),
      static_cast<T*>(gradient));
}

}  // namespace

cudaError_t cross_entropy(const CrossEntropyRows& rows, void* losses, void* loss, void* count, cudaStream_t stream) {
  with_type(rows.type, [&](auto score) {
    using T = decltype(score);
    if (is_wide<T>(rows, rows.scores)) launch_loss<T, kWide<T>>(rows, losses, stream);
    else launch_loss<T, 1>(rows, losses, stream);
    mean_kernel<<<1, kSumThreads, 0, stream>>>(static_cast<const Sum<T>*>(losses), rows.targets, rows.rows,
                                               rows.ignore_index, static_cast<Sum<T>*>(loss),
                                               static_cast<Sum<T>*>(count));
  });
  return cudaGetLastError();
}

cudaError_t cross_entropy_gradient(const CrossEntropyRows& rows, const void* upstream, const void* count,
                                   void* gradient, cudaStream_t stream) {
  with_type(rows.type, [&](auto score) {
    using T = decltype(score);
    if (is_wide<T>(rows, gradient)) launch_gradient<T, kWide<T>>(rows, upstream, count, gradient, stream);
    else launch_gradient<T, 1>(rows, upstream, count, gradient, stream);
  });
  return cudaGetLastError();
}

}  // namespace syncrun::libtorch::detail::kernels

#include "libtorch/cuda/layer_kernels.hpp"

#include <cstdint>
#include <type_traits>

#include "libtorch/cuda/column_sums.cuh"

namespace syncrun::libtorch::detail::kernels {

namespace {

constexpr int kRowsOfBlock = 4;  // of a normalization: one for each warp
constexpr unsigned kAll = 0xffffffffU;
// A block of embedding_kernel has kThreads threads, and looks through kTokens tokens.
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kLanes;
constexpr int kTokensOfThread = 4;
constexpr int kTokens = kThreads * kTokensOfThread;

__device__ float rsqrt_of(float x) { return rsqrtf(x); }
__device__ double rsqrt_of(double x) { return rsqrt(x); }

/// The sum over a warp, in all of its lanes.
template <class A>
__device__ A sum_of_warp(A own) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) own += __shfl_xor_sync(kAll, own, distance);
  return own;
}

/// A normalization whose types are known. A is the type of sums.
template <class T, class Y>
struct Rows {
  using A = Sum<T>;

  const T* x;
  const A* weight;
  const A* bias;
  A* means;
  A* scales;
  std::int64_t rows;
  std::int64_t width;
  A epsilon;
  bool are_weights_wide;  // whether threads can read kColumns<A> weights and biases at once

  static Rows of(const Normalization& n) {
    return {.x = static_cast<const T*>(n.x.elements),
            .weight = static_cast<const A*>(n.weight),
            .bias = static_cast<const A*>(n.bias),
            .means = static_cast<A*>(n.means),
            .scales = static_cast<A*>(n.scales),
            .rows = n.x.rows,
            .width = n.x.width,
            .epsilon = static_cast<A>(n.epsilon),
            .are_weights_wide = fit<kColumns<A>>(static_cast<const A*>(n.weight), static_cast<const A*>(n.bias))};
  }
  template <int kWidth>
  __device__ Pack<A, kWidth> weights_at(std::int64_t column) const {
    return values_at<kWidth>(weight, A{1}, column);
  }
  template <int kWidth>
  __device__ Pack<A, kWidth> biases_at(std::int64_t column) const {
    return values_at<kWidth>(bias, A{0}, column);
  }
  /// Parameters of a module lie one behind the other, so they may begin at any address.
  template <int kWidth>
  __device__ Pack<A, kWidth> values_at(const A* values, A without, std::int64_t column) const {
    if (values != nullptr && are_weights_wide) return *reinterpret_cast<const Pack<A, kWidth>*>(values + column);
    Pack<A, kWidth> pack;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) pack.values[k] = values == nullptr ? without : values[column + k];
    return pack;
  }
  /// Calls use(pack, column) for what this lane handles of a row.
  template <int kWidth, class E, class Use>
  __device__ void for_each_pack(const E* row, Use&& use) const {
    for (std::int64_t column = std::int64_t{threadIdx.x} * kWidth; column < width; column += kLanes * kWidth)
      use(*reinterpret_cast<const Pack<E, kWidth>*>(row + column), column);
  }
};

/// What a normalization adds to x first. At most one of the changes is not null.
template <class T>
struct Added {
  const T* change;
  const __nv_bfloat16* short_change;
  T* sum;

  static Added of(const Addition& addition, Element type_of_x) {
    const bool is_short = addition.type != type_of_x;
    return {.change = is_short ? nullptr : static_cast<const T*>(addition.change),
            .short_change = is_short ? static_cast<const __nv_bfloat16*>(addition.change) : nullptr,
            .sum = static_cast<T*>(addition.sum)};
  }
  /// Adds to elements of x, which begin at `index` of the array, and writes the sum.
  template <int kWidth>
  __device__ Pack<T, kWidth> add(Pack<T, kWidth> x, std::int64_t index) const {
    if (change != nullptr) add_from<kWidth>(change + index, x);
    else if (short_change != nullptr) add_from<kWidth>(short_change + index, x);
    else return x;
    *reinterpret_cast<Pack<T, kWidth>*>(sum + index) = x;
    return x;
  }

 private:
  template <int kWidth, class C>
  __device__ static void add_from(const C* from, Pack<T, kWidth>& x) {
    using A = Sum<T>;
    const auto pack = *reinterpret_cast<const Pack<C, kWidth>*>(from);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      x.values[k] = static_cast<T>(static_cast<A>(x.values[k]) + static_cast<A>(pack.values[k]));
  }
};

/// The arrays of a gradient.
template <class T, class Y>
struct Gradient {
  const Y* dy;
  const T* ds;
  T* dx;
  __nv_bfloat16* short_change;

  static Gradient of(const NormalizationGradient& gradient) {
    return {.dy = static_cast<const Y*>(gradient.dy),
            .ds = static_cast<const T*>(gradient.ds),
            .dx = static_cast<T*>(gradient.dx),
            .short_change = static_cast<__nv_bfloat16*>(gradient.short_change)};
  }
};

/// The row of this warp.
__device__ std::int64_t own_row() { return std::int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.y; }

template <int kWidth, class T, class Y>
__global__ void __launch_bounds__(kLanes* kRowsOfBlock) norm_kernel(Rows<T, Y> of, Added<T> added, Y* y) {
  using A = Sum<T>;
  const std::int64_t row = own_row();
  if (row >= of.rows) return;
  const T* const x = of.x + row * of.width;
  A sum = 0;
  of.template for_each_pack<kWidth>(x, [&](const Pack<T, kWidth>& pack, std::int64_t column) {
    const auto own_s = added.template add<kWidth>(pack, row * of.width + column);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += static_cast<A>(own_s.values[k]);
  });
  // From here on, each lane reads the sums that it has written.
  const T* const s = added.sum == nullptr ? x : added.sum + row * of.width;
  const A mean = sum_of_warp(sum) / static_cast<A>(of.width);
  A squares = 0;  // a second pass, because the difference of two large sums would lose digits
  of.template for_each_pack<kWidth>(s, [&](const Pack<T, kWidth>& pack, std::int64_t) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A distance = static_cast<A>(pack.values[k]) - mean;
      squares += distance * distance;
    }
  });
  const A scale = rsqrt_of(sum_of_warp(squares) / static_cast<A>(of.width) + of.epsilon);
  of.template for_each_pack<kWidth>(s, [&](const Pack<T, kWidth>& pack, std::int64_t column) {
    const auto weights = of.template weights_at<kWidth>(column);
    const auto biases = of.template biases_at<kWidth>(column);
    Pack<Y, kWidth> result;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A n = (static_cast<A>(pack.values[k]) - mean) * scale;
      result.values[k] = static_cast<Y>(n * weights.values[k] + biases.values[k]);
    }
    *reinterpret_cast<Pack<Y, kWidth>*>(y + row * of.width + column) = result;
  });
  if (threadIdx.x != 0) return;
  of.means[row] = mean;
  of.scales[row] = scale;
}

template <int kWidth, class T, class Y>
__global__ void __launch_bounds__(kLanes* kRowsOfBlock) norm_gradient_kernel(Rows<T, Y> of, Gradient<T, Y> gradient) {
  using A = Sum<T>;
  const std::int64_t row = own_row();
  if (row >= of.rows) return;
  const T* const x = of.x + row * of.width;
  const Y* const own_dy = gradient.dy + row * of.width;
  const A mean = of.means[row];
  const A scale = of.scales[row];
  A sum = 0;       // of g
  A products = 0;  // of g * n
  of.template for_each_pack<kWidth>(x, [&](const Pack<T, kWidth>& pack, std::int64_t column) {
    const auto upstream = *reinterpret_cast<const Pack<Y, kWidth>*>(own_dy + column);
    const auto weights = of.template weights_at<kWidth>(column);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A g = static_cast<A>(upstream.values[k]) * weights.values[k];
      sum += g;
      products += g * (static_cast<A>(pack.values[k]) - mean) * scale;
    }
  });
  const A mean_g = sum_of_warp(sum) / static_cast<A>(of.width);
  const A mean_product = sum_of_warp(products) / static_cast<A>(of.width);
  of.template for_each_pack<kWidth>(x, [&](const Pack<T, kWidth>& pack, std::int64_t column) {
    const auto upstream = *reinterpret_cast<const Pack<Y, kWidth>*>(own_dy + column);
    const auto weights = of.template weights_at<kWidth>(column);
    const std::int64_t index = row * of.width + column;
    Pack<T, kWidth> of_sum{};
    if (gradient.ds != nullptr) of_sum = *reinterpret_cast<const Pack<T, kWidth>*>(gradient.ds + index);
    Pack<T, kWidth> result;
    Pack<__nv_bfloat16, kWidth> short_result;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A g = static_cast<A>(upstream.values[k]) * weights.values[k];
      const A n = (static_cast<A>(pack.values[k]) - mean) * scale;
      const A exact = static_cast<A>(of_sum.values[k]) + scale * (g - mean_g - n * mean_product);
      result.values[k] = static_cast<T>(exact);
      short_result.values[k] = static_cast<__nv_bfloat16>(exact);
    }
    *reinterpret_cast<Pack<T, kWidth>*>(gradient.dx + index) = result;
    if (gradient.short_change != nullptr)
      *reinterpret_cast<Pack<__nv_bfloat16, kWidth>*>(gradient.short_change + index) = short_result;
  });
}

/// What a row adds to the gradients of weight and bias.
template <class T, class Y>
struct WeightShares {
  static constexpr int kSums = 2;
  using A = Sum<T>;

  Rows<T, Y> of;
  const Y* dy;

  template <int kWidth>
  __device__ void add(std::int64_t row, std::int64_t column, A (&sums)[kSums][kWidth]) const {
    const auto x = *reinterpret_cast<const Pack<T, kWidth>*>(of.x + row * of.width + column);
    const auto upstream = *reinterpret_cast<const Pack<Y, kWidth>*>(dy + row * of.width + column);
    const A mean = of.means[row];
    const A scale = of.scales[row];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A own = static_cast<A>(upstream.values[k]);
      sums[0][k] += own * (static_cast<A>(x.values[k]) - mean) * scale;
      sums[1][k] += own;
    }
  }
};

/// Writes to `found` which of the tokens of this block are `wanted`, in their order, and returns how many.
__device__ int find(const std::int64_t* tokens, std::int64_t rows, std::int64_t wanted, int* found) {
  __shared__ int counts[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kLanes;
  const int lane = thread % kLanes;
  const std::int64_t first = std::int64_t{blockIdx.y} * kTokens + thread * kTokensOfThread;
  bool is_wanted[kTokensOfThread];
  int before = 0;  // in this warp
  int of_warp = 0;
#pragma unroll
  for (int i = 0; i < kTokensOfThread; ++i) {
    is_wanted[i] = first + i < rows && tokens[first + i] == wanted;
    const unsigned lanes = __ballot_sync(kAll, is_wanted[i]);
    before += __popc(lanes & ((1U << lane) - 1));
    of_warp += __popc(lanes);
  }
  if (lane == 0) counts[warp] = of_warp;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += counts[i];
    all += counts[i];
  }
#pragma unroll
  for (int i = 0; i < kTokensOfThread; ++i) {
    if (is_wanted[i]) found[before++] = thread * kTokensOfThread + i;
  }
  __syncthreads();
  return all;
}

/// One block for each entry of the vocabulary (x) and each kTokens tokens (y). Writes [gridDim.y, vocabulary, width].
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const std::int64_t* tokens, const T* dy, std::int64_t rows, std::int64_t width, Sum<T>* results) {
  using A = Sum<T>;
  __shared__ int found[kTokens];
  __shared__ A shares[kWarps][kLanes * kWidth];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kLanes;
  const int lane = thread % kLanes;
  const int count = find(tokens, rows, blockIdx.x, found);
  const Elements<T> own{dy + std::int64_t{blockIdx.y} * kTokens * width, width};
  A* const result = results + (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * width;
  for (std::int64_t left = 0; left < width; left += kLanes * kWidth) {
    const std::int64_t column = left + lane * kWidth;
    A sums[1][kWidth] = {};
    if (column < width) {
#pragma unroll 4
      for (int i = warp; i < count; i += kWarps) own.template add<kWidth>(found[i], column, sums);
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) shares[warp][lane * kWidth + k] = sums[0][k];
    __syncthreads();
    if (thread < kLanes * kWidth && left + thread < width) {
      A sum = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) sum += shares[i][thread];
      result[left + thread] = sum;
    }
    __syncthreads();
  }
}

/// Calls use(x, y) with values of the types of a normalization.
template <class Use>
void with_types(const Normalization& of, Use&& use) {
  with_type(of.x.type, [&](auto x) {
    if constexpr (std::is_same_v<decltype(x), float>) {
      if (of.type_of_y == Element::bfloat16) return use(x, __nv_bfloat16{});
    }
    return use(x, x);
  });
}

/// Calls use(std::integral_constant) with the number of elements that threads handle at once.
template <class A, class Use>
void with_width(bool is_wide, Use&& use) {
  if (is_wide) use(std::integral_constant<int, kColumns<A>>{});
  else use(std::integral_constant<int, 1>{});
}

dim3 grid_of(const Normalization& of) { return {static_cast<unsigned>((of.x.rows + kRowsOfBlock - 1) / kRowsOfBlock)}; }

std::int64_t blocks_of(const ChosenRows& chosen) { return (chosen.dy.rows + kTokens - 1) / kTokens; }

}  // namespace

std::int64_t scratch_of_column_sums(const Matrix& matrix, int sums) {
  // With one column for each thread, there are at most as many blocks over the rows.
  const int columns = matrix.type == Element::float64 ? kColumns<double> : kColumns<float>;
  return ColumnGrid::of(matrix.rows, matrix.width, columns).blocks * sums * matrix.width;
}

cudaError_t column_sums(const Matrix& matrix, void* scratch, void* results, cudaStream_t stream) {
  with_type(matrix.type, [&](auto element) {
    using T = decltype(element);
    using A = Sum<T>;
    const Elements<T> source{static_cast<const T*>(matrix.elements), matrix.width};
    sum_columns(source, matrix.rows, matrix.width, is_wide<A>(matrix.width, source.rows) ? kColumns<A> : 1,
                static_cast<A*>(scratch), static_cast<A*>(results), stream);
  });
  return cudaGetLastError();
}

cudaError_t layer_norm(const Normalization& of, const Addition& addition, void* y, cudaStream_t stream) {
  with_types(of, [&](auto x, auto of_y) {
    using Y = decltype(of_y);
    using T = decltype(x);
    const auto rows = Rows<T, Y>::of(of);
    const auto added = Added<T>::of(addition, of.x.type);
    auto* const own_y = static_cast<Y*>(y);
    const bool wide = is_wide<Sum<T>>(rows.width, rows.x, added.change, added.short_change, added.sum, own_y);
    with_width<Sum<T>>(wide, [&](auto columns) {
      norm_kernel<decltype(columns)::value><<<grid_of(of), dim3(kLanes, kRowsOfBlock), 0, stream>>>(rows, added, own_y);
    });
  });
  return cudaGetLastError();
}

cudaError_t layer_norm_gradient(const Normalization& of, const NormalizationGradient& gradient, cudaStream_t stream) {
  with_types(of, [&](auto x, auto of_y) {
    using T = decltype(x);
    using Y = decltype(of_y);
    const auto rows = Rows<T, Y>::of(of);
    const auto own = Gradient<T, Y>::of(gradient);
    const bool wide = is_wide<Sum<T>>(rows.width, rows.x, own.dy, own.ds, own.dx, own.short_change);
    with_width<Sum<T>>(wide, [&](auto columns) {
      norm_gradient_kernel<decltype(columns)::value><<<grid_of(of), dim3(kLanes, kRowsOfBlock), 0, stream>>>(rows, own);
    });
  });
  return cudaGetLastError();
}

cudaError_t layer_norm_sums(const Normalization& of, const void* dy, void* scratch, void* results,
                            cudaStream_t stream) {
  with_types(of, [&](auto x, auto of_y) {
    using T = decltype(x);
    using Y = decltype(of_y);
    using A = Sum<T>;
    const WeightShares<T, Y> source{Rows<T, Y>::of(of), static_cast<const Y*>(dy)};
    const int columns = is_wide<A>(of.x.width, source.of.x, source.dy) ? kColumns<A> : 1;
    sum_columns(source, of.x.rows, of.x.width, columns, static_cast<A*>(scratch), static_cast<A*>(results), stream);
  });
  return cudaGetLastError();
}

std::int64_t scratch_of_embedding(const ChosenRows& chosen) {
  const std::int64_t blocks = blocks_of(chosen);
  return blocks == 1 ? 0 : blocks * chosen.vocabulary * chosen.dy.width;
}

cudaError_t embedding_gradient(const ChosenRows& chosen, void* scratch, void* results, cudaStream_t stream) {
  with_type(chosen.dy.type, [&](auto element) {
    using T = decltype(element);
    using A = Sum<T>;
    const std::int64_t blocks = blocks_of(chosen);
    const dim3 grid(static_cast<unsigned>(chosen.vocabulary), static_cast<unsigned>(blocks));
    A* const sums = static_cast<A*>(blocks == 1 ? results : scratch);
    const auto* const dy = static_cast<const T*>(chosen.dy.elements);
    with_width<A>(is_wide<A>(chosen.dy.width, dy), [&](auto columns) {
      embedding_kernel<decltype(columns)::value>
          <<<grid, kThreads, 0, stream>>>(chosen.tokens, dy, chosen.dy.rows, chosen.dy.width, sums);
    });
    if (blocks != 1) add_up(sums, blocks, chosen.vocabulary * chosen.dy.width, static_cast<A*>(results), stream);
  });
  return cudaGetLastError();
}

}  // namespace syncrun::libtorch::detail::kernels

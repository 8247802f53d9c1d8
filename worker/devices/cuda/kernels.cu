#include <algorithm>
#include <limits>

#include "worker/devices/cuda/arithmetic.cuh"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/kernels.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;
constexpr std::size_t kShortRowBytes = 8;
constexpr std::size_t kHalfBytes = 2;  // of the types whose partial_type is another one

int blocks_for(std::int64_t units) {
  return static_cast<int>(std::clamp<std::int64_t>((units + kThreads - 1) / kThreads, 1, kMostBlocks));
}

// ---- gather ---------------------------------------------------------------------------------------------------

constexpr int kWarp = 32;
constexpr std::int64_t kPartBytes = 8192;

struct Jobs {
  GatherJob job[kMostGathers];
  std::int64_t first_part[kMostGathers + 1];  // parts of rows, numbered across all jobs
  std::int64_t parts_in_row[kMostGathers];
  int count;
};

/// One warp copies a part of a row. Each lane has several loads in flight to hide the latency of the bus.
template <class Unit>
__device__ void copy_part(void* to, const void* from, std::int64_t begin_bytes, std::int64_t end_bytes, int lane) {
  constexpr int kInFlight = 4;
  const auto* const source = static_cast<const Unit*>(from);
  auto* const target = static_cast<Unit*>(to);
  const std::int64_t end = end_bytes / static_cast<std::int64_t>(sizeof(Unit));
  for (std::int64_t i = begin_bytes / static_cast<std::int64_t>(sizeof(Unit)) + lane; i < end; i += kWarp * kInFlight) {
    Unit held[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k * kWarp < end) held[k] = source[i + k * kWarp];
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (i + k * kWarp < end) target[i + k * kWarp] = held[k];
    }
  }
}

/// Each warp copies one part of a row after the other. If rows are very short, each lane copies a whole row, because
/// most lanes would be idle otherwise.
__global__ void gather(const __grid_constant__ Jobs jobs) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * blockDim.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int at = 0;
  for (std::int64_t part = warp; part < jobs.first_part[jobs.count]; part += warps) {
    while (part >= jobs.first_part[at + 1]) ++at;
    const GatherJob& job = jobs.job[at];
    const std::int64_t own = part - jobs.first_part[at];
    const auto row_bytes = static_cast<std::int64_t>(job.row_bytes);
    if (job.row_bytes <= kShortRowBytes) {
      const std::int64_t row = own * kWarp + lane;
      if (row >= job.rows) continue;
      const std::int64_t from = job.indices == nullptr ? row : job.indices[row];
      const auto* const source = static_cast<const char*>(job.from) + from * row_bytes;
      auto* const target = static_cast<char*>(job.to) + row * row_bytes;
      if (job.unit_bytes == 8)
        *reinterpret_cast<std::int64_t*>(target) = *reinterpret_cast<const std::int64_t*>(source);
      else if (job.unit_bytes == 4 && row_bytes == 4)
        *reinterpret_cast<std::int32_t*>(target) = *reinterpret_cast<const std::int32_t*>(source);
      else
        for (std::int64_t i = 0; i < row_bytes; ++i) target[i] = source[i];
      continue;
    }
    const std::int64_t row = own / jobs.parts_in_row[at];
    const std::int64_t begin = own % jobs.parts_in_row[at] * kPartBytes;
    const std::int64_t end = min(begin + kPartBytes, row_bytes);
    const std::int64_t from = job.indices == nullptr ? row : job.indices[row];
    const void* const source = static_cast<const char*>(job.from) + from * row_bytes;
    void* const target = static_cast<char*>(job.to) + row * row_bytes;
    switch (job.unit_bytes) {
      case 16: copy_part<int4>(target, source, begin, end, lane); break;
      case 8: copy_part<std::int64_t>(target, source, begin, end, lane); break;
      case 4: copy_part<std::int32_t>(target, source, begin, end, lane); break;
      default: copy_part<std::int8_t>(target, source, begin, end, lane);
    }
  }
}

std::uint32_t unit_for(const GatherJob& job) noexcept {
  const auto all =
      reinterpret_cast<std::uintptr_t>(job.to) | reinterpret_cast<std::uintptr_t>(job.from) | job.row_bytes;
  for (const std::uint32_t unit : {16U, 8U, 4U}) {
    if (all % unit == 0) return unit;
  }
  return 1;
}

// ---- arithmetic -----------------------------------------------------------------------------------------------

template <class T, class A = typename Arithmetic<T>::type>
__global__ void accumulate_kernel(Reduction reduction, A* into, const T* value, double weight_into, double weight_value,
                                  std::size_t elements) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    const A a = into[i];
    const A b = static_cast<A>(value[i]);
    if (reduction == Reduction::avg) into[i] = a * static_cast<A>(weight_into) + b * static_cast<A>(weight_value);
    else into[i] = combine<A>(reduction, a, b);
  }
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, std::size_t elements) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    to[i] = static_cast<To>(from[i]);
  }
}

// ---- keys -----------------------------------------------------------------------------------------------------

/// The key of T and the floating-point type with the same number of bits.
template <class T>
struct Keys {
  using Key = std::int32_t;
  using Float = float;
};
template <>
struct Keys<double> {
  using Key = std::int64_t;
  using Float = double;
};
template <class K>
constexpr K kLargest = std::numeric_limits<K>::max();
template <class K>
constexpr K kSmallest = std::numeric_limits<K>::lowest();

/// As integers, the bits of negative values have the opposite order. The function is its own inverse. The largest and the
/// smallest integer are the bits of NaN.
template <class K>
__device__ K in_order(K bits) {
  return bits < 0 ? bits ^ kLargest<K> : bits;
}

template <class T>
__global__ void to_keys_kernel(const T* values, typename Keys<T>::Key* keys, typename Keys<T>::Key of_nan,
                               std::size_t elements) {
  using Key = typename Keys<T>::Key;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    const auto value = static_cast<typename Keys<T>::Float>(values[i]);
    Key bits;
    memcpy(&bits, &value, sizeof(bits));
    keys[i] = value != value ? of_nan : in_order(bits);
  }
}

template <class T>
__global__ void from_keys_kernel(const typename Keys<T>::Key* keys, T* values, std::size_t elements) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    const auto bits = in_order(keys[i]);
    typename Keys<T>::Float value;
    memcpy(&value, &bits, sizeof(value));
    values[i] = static_cast<T>(value);
  }
}

template <class T>
__global__ void scale_kernel(T* values, double factor, std::size_t elements) {
  using A = typename Arithmetic<T>::type;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    values[i] = static_cast<T>(static_cast<A>(values[i]) * static_cast<A>(factor));
  }
}

template <class T>
__global__ void fill_kernel(T* to, T value, std::size_t elements) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    to[i] = value;
  }
}

template <class T>
T identity(Reduction reduction) {
  using A = typename Arithmetic<T>::type;
  using Limits = std::numeric_limits<A>;
  // Infinity is used instead of the largest value. For 16-bit types, the value is converted from float.
  const A most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const A least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  static_assert(static_cast<int>(Reduction::gather) == 5, "say which value does not change the new reduction");
  switch (reduction) {
    case Reduction::prod: return static_cast<T>(A{1});
    case Reduction::min: return static_cast<T>(most);
    case Reduction::max: return static_cast<T>(least);
    case Reduction::avg:
    case Reduction::sum:
    case Reduction::gather: return static_cast<T>(A{0});
  }
  return static_cast<T>(A{0});
}

}  // namespace

void gather_rows(std::span<const GatherJob> wanted, int blocks, cudaStream_t stream) {
  Jobs jobs{};
  for (const GatherJob& job : wanted) {
    if (job.rows == 0 || job.row_bytes == 0) continue;
    const int i = jobs.count++;
    jobs.job[i] = job;
    jobs.job[i].unit_bytes = unit_for(job);
    const auto row_bytes = static_cast<std::int64_t>(job.row_bytes);
    const bool is_short = job.row_bytes <= kShortRowBytes;
    jobs.parts_in_row[i] = is_short ? 1 : (row_bytes + kPartBytes - 1) / kPartBytes;
    const std::int64_t parts = is_short ? (job.rows + kWarp - 1) / kWarp : job.rows * jobs.parts_in_row[i];
    jobs.first_part[i + 1] = jobs.first_part[i] + parts;
  }
  if (jobs.count == 0) return;
  gather<<<std::min(blocks_for(jobs.first_part[jobs.count] * kWarp), blocks), kThreads, 0, stream>>>(jobs);
  check_cuda(cudaGetLastError(), "gathering rows");
}

void accumulate(DType dtype, Reduction reduction, void* into, const void* value, double weight_into,
                double weight_value, std::size_t elements, cudaStream_t stream) {
  if (elements == 0) return;
  with_type(dtype, [&]<class T>(T*) {
    accumulate_kernel<T><<<blocks_for(static_cast<std::int64_t>(elements)), kThreads, 0, stream>>>(
        reduction, static_cast<typename Arithmetic<T>::type*>(into), static_cast<const T*>(value), weight_into,
        weight_value, elements);
  });
  check_cuda(cudaGetLastError(), "accumulating slices");
}

void convert(arrays::ElementTypes types, const void* from, void* to, std::size_t elements, cudaStream_t stream) {
  if (elements == 0) return;
  const int blocks = blocks_for(static_cast<std::int64_t>(elements));
  const bool widens = types.to == DType::float32;
  with_floating_type(widens ? types.from : types.to, [&]<class T>(T*) {
    if constexpr (sizeof(T) == kHalfBytes) {
      if (widens) {
        convert_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(from), static_cast<float*>(to), elements);
      } else {
        convert_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const float*>(from), static_cast<T*>(to), elements);
      }
    }
  });
  check_cuda(cudaGetLastError(), "rounding a sum");
}

void to_keys(DType dtype, Reduction reduction, const void* values, void* keys, std::size_t elements,
             cudaStream_t stream) {
  if (elements == 0) return;
  with_floating_type(dtype, [&]<class T>(T*) {
    using Key = typename Keys<T>::Key;
    const Key of_nan = reduction == Reduction::max ? kLargest<Key> : kSmallest<Key>;
    to_keys_kernel<T><<<blocks_for(static_cast<std::int64_t>(elements)), kThreads, 0, stream>>>(
        static_cast<const T*>(values), static_cast<Key*>(keys), of_nan, elements);
  });
  check_cuda(cudaGetLastError(), "preparing a minimum or maximum");
}

void from_keys(DType dtype, const void* keys, void* values, std::size_t elements, cudaStream_t stream) {
  if (elements == 0) return;
  with_floating_type(dtype, [&]<class T>(T*) {
    from_keys_kernel<T><<<blocks_for(static_cast<std::int64_t>(elements)), kThreads, 0, stream>>>(
        static_cast<const typename Keys<T>::Key*>(keys), static_cast<T*>(values), elements);
  });
  check_cuda(cudaGetLastError(), "completing a minimum or maximum");
}

void scale(DType dtype, void* values, double factor, std::size_t elements, cudaStream_t stream) {
  if (elements == 0) return;
  with_type(dtype, [&]<class T>(T*) {
    scale_kernel<T><<<blocks_for(static_cast<std::int64_t>(elements)), kThreads, 0, stream>>>(static_cast<T*>(values),
                                                                                              factor, elements);
  });
  check_cuda(cudaGetLastError(), "weighting an average");
}

void fill_identity(DType dtype, Reduction reduction, void* to, std::size_t elements, cudaStream_t stream) {
  if (elements == 0) return;
  with_type(dtype, [&]<class T>(T*) {
    fill_kernel<T><<<blocks_for(static_cast<std::int64_t>(elements)), kThreads, 0, stream>>>(
        static_cast<T*>(to), identity<T>(reduction), elements);
  });
  check_cuda(cudaGetLastError(), "filling a share without rows");
}

void load_kernels() {
  const auto load = [](auto* kernel) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "loading kernels");
  };
  load(&gather);
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8, DType::int16,
                            DType::int32, DType::int64, DType::uint8, DType::uint16, DType::uint32, DType::uint64}) {
    with_type(dtype, [&]<class T>(T*) {
      load(&accumulate_kernel<T>);
      load(&scale_kernel<T>);
      load(&fill_kernel<T>);
    });
    with_floating_type(dtype, [&]<class T>(T*) {
      if constexpr (sizeof(T) == kHalfBytes) {
        load(&convert_kernel<T, float>);
        load(&convert_kernel<float, T>);
      }
      load(&to_keys_kernel<T>);
      load(&from_keys_kernel<T>);
    });
  }
}

}  // namespace syncrun::detail::worker::devices::cuda::kernels

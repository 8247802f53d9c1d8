#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "worker/cuda/check.hpp"
#include "worker/cuda/kernels.hpp"

namespace syncrun::detail::kernels {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;

int blocks_for(std::int64_t units) {
  return static_cast<int>(std::clamp<std::int64_t>((units + kThreads - 1) / kThreads, 1, kMostBlocks));
}

// ---- gather ---------------------------------------------------------------------------------------------------

/// One warp a row where rows are short, several where they are long: `parts` warps share a row. Each lane has several
/// loads in flight, since the bus is far away.
template <class Unit>
__global__ void gather(Unit* to, const Unit* from, std::int64_t row_units, const std::int64_t* indices,
                       std::int64_t count, std::int64_t parts) {
  constexpr int kWarp = 32;
  constexpr int kInFlight = 4;
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * blockDim.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t part_units = (row_units + parts - 1) / parts;
  for (std::int64_t work = warp; work < count * parts; work += warps) {
    const std::int64_t row = work / parts;
    const std::int64_t begin = work % parts * part_units;
    const std::int64_t end = min(begin + part_units, row_units);
    const Unit* const source = from + indices[row] * row_units;
    Unit* const target = to + row * row_units;
    for (std::int64_t i = begin + lane; i < end; i += kWarp * kInFlight) {
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
}

template <class Unit>
void launch_gather(void* to, const void* from, std::size_t row_bytes, const std::int64_t* indices, std::int64_t count,
                   cudaStream_t stream) {
  constexpr std::int64_t kPartUnits = 512;
  const auto row_units = static_cast<std::int64_t>(row_bytes / sizeof(Unit));
  const std::int64_t parts = (row_units + kPartUnits - 1) / kPartUnits;
  gather<Unit><<<blocks_for(count * parts * 32), kThreads, 0, stream>>>(
      static_cast<Unit*>(to), static_cast<const Unit*>(from), row_units, indices, count, parts);
}

// ---- arithmetic -----------------------------------------------------------------------------------------------

/// The type of an element on the device, and the one to compute in.
template <class T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<__half> {
  using type = float;
};
template <>
struct Arithmetic<__nv_bfloat16> {
  using type = float;
};

template <class A>
__device__ A combine(Reduction reduction, A a, A b) {
  switch (reduction) {
    case Reduction::min: return b < a ? b : a;
    case Reduction::max: return a < b ? b : a;
    case Reduction::prod:
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      else return a * b;
    default:
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      else return a + b;
  }
}

template <class T>
__global__ void accumulate_kernel(Reduction reduction, T* into, const T* value, double weight_into, double weight_value,
                                  std::size_t elements) {
  using A = typename Arithmetic<T>::type;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
    const A a = static_cast<A>(into[i]);
    const A b = static_cast<A>(value[i]);
    if (reduction == Reduction::avg)
      into[i] = static_cast<T>(a * static_cast<A>(weight_into) + b * static_cast<A>(weight_value));
    else into[i] = static_cast<T>(combine<A>(reduction, a, b));
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
  // Infinity is larger than what is largest; 16-bit types round it to their own.
  const A most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const A least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  switch (reduction) {
    case Reduction::prod: return static_cast<T>(A{1});
    case Reduction::min: return static_cast<T>(most);
    case Reduction::max: return static_cast<T>(least);
    default: return static_cast<T>(A{0});
  }
}

/// Calls f with a null pointer to the device's type of the elements.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float16: return f(static_cast<__half*>(nullptr));
    case DType::bfloat16: return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::float64: return f(static_cast<double*>(nullptr));
    case DType::int8: return f(static_cast<std::int8_t*>(nullptr));
    case DType::int16: return f(static_cast<std::int16_t*>(nullptr));
    case DType::int32: return f(static_cast<std::int32_t*>(nullptr));
    case DType::int64: return f(static_cast<std::int64_t*>(nullptr));
    case DType::uint8:
    case DType::boolean: return f(static_cast<std::uint8_t*>(nullptr));
  }
}

}  // namespace

void gather_rows(void* to, const void* from, std::size_t row_bytes, const std::int64_t* indices, std::int64_t count,
                 cudaStream_t stream) {
  if (count == 0 || row_bytes == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | row_bytes;
  if (address % 16 == 0) launch_gather<int4>(to, from, row_bytes, indices, count, stream);
  else if (address % 8 == 0) launch_gather<std::int64_t>(to, from, row_bytes, indices, count, stream);
  else if (address % 4 == 0) launch_gather<std::int32_t>(to, from, row_bytes, indices, count, stream);
  else launch_gather<std::int8_t>(to, from, row_bytes, indices, count, stream);
  check_cuda(cudaGetLastError(), "gathering rows");
}

void accumulate(DType dtype, Reduction reduction, void* into, const void* value, double weight_into,
                double weight_value, std::size_t elements, cudaStream_t stream) {
  if (elements == 0) return;
  with_type(dtype, [&]<class T>(T*) {
    accumulate_kernel<T><<<blocks_for(static_cast<std::int64_t>(elements)), kThreads, 0, stream>>>(
        reduction, static_cast<T*>(into), static_cast<const T*>(value), weight_into, weight_value, elements);
  });
  check_cuda(cudaGetLastError(), "accumulating slices");
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

}  // namespace syncrun::detail::kernels

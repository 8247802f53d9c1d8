#pragma once

// Syncrun's own kernels, in stream order. All pointers are to device memory unless stated otherwise.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/arrays/reduce.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

/// to[i] = from[indices[i]] for rows of `row_bytes`. If `indices` is null, to[i] = from[i]. `from` and `indices` may be
/// in pinned host memory.
struct GatherJob {
  void* to;
  const void* from;
  std::size_t row_bytes;
  const std::int64_t* indices;
  std::int64_t rows;
  std::uint32_t unit_bytes = 0;  // bytes that are moved at a time; gather_rows sets it
};
inline constexpr int kMostGathers = 32;

/// Runs up to kMostGathers jobs in one launch, of at most `blocks` blocks with 256 threads each.
void gather_rows(std::span<const GatherJob> jobs, int blocks, cudaStream_t stream);

/// into = into (op) value. For avg, into * weight_into + value * weight_value. `value` has the type, and `into` has its
/// partial_type.
void accumulate(DType dtype, Reduction reduction, void* into, const void* value, double weight_into,
                double weight_value, std::size_t elements, cudaStream_t stream);

/// Copies elements from one type to the other, one of which is the partial_type of the other. The arrays do not overlap.
void convert(arrays::ElementTypes types, const void* from, void* to, std::size_t elements, cudaStream_t stream);

/// Keys are integers that have the same order as floating-point values. NaN comes last if `reduction` is max, and first if
/// it is min. So the maximum or minimum of keys is NaN if one of the values is NaN. float64 has keys of 64 bits, and the
/// other types have keys of 32 bits.
constexpr DType key_type(DType dtype) noexcept { return dtype == DType::float64 ? DType::int64 : DType::int32; }
/// The keys of values. If both have the same size, `keys` may be `values`.
void to_keys(DType dtype, Reduction reduction, const void* values, void* keys, std::size_t elements,
             cudaStream_t stream);
/// The values of keys. If both have the same size, `values` may be `keys`.
void from_keys(DType dtype, const void* keys, void* values, std::size_t elements, cudaStream_t stream);

/// values *= factor. 16-bit types are computed in float. Floating-point types only.
void scale(DType dtype, void* values, double factor, std::size_t elements, cudaStream_t stream);

/// Fills the memory with the value that does not change a result: 0 for sum and avg, 1 for prod, infinity or the
/// largest value for min, minus infinity or the lowest value for max.
void fill_identity(DType dtype, Reduction reduction, void* to, std::size_t elements, cudaStream_t stream);

/// Loads all kernels that are declared here. Otherwise CUDA loads each of them at its first launch. This may wait for
/// everything that runs on the device, even for a kernel that waits for a peer. If the peer is lost, the wait has no end.
void load_kernels();

}  // namespace syncrun::detail::worker::devices::cuda::kernels

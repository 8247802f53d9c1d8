#pragma once

// The framework's own work on a GPU, in stream order. All pointers are device memory unless said otherwise.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::kernels {

/// to[i] = from[indices[i]] for rows of `row_bytes`; without indices to[i] = from[i]. `from` and `indices` may be pinned
/// host memory.
struct GatherJob {
  void* to;
  const void* from;
  std::size_t row_bytes;
  const std::int64_t* indices;
  std::int64_t rows;
  std::uint32_t unit_bytes = 0;  // what is moved at a time; gather_rows fills it in
};
inline constexpr int kMostGathers = 32;

/// Up to kMostGathers in one launch, of at most `blocks` blocks of 256 threads.
void gather_rows(std::span<const GatherJob> jobs, int blocks, cudaStream_t stream);

/// into = into (op) value; for avg into * weight_into + value * weight_value, in float for 16-bit types.
void accumulate(DType dtype, Reduction reduction, void* into, const void* value, double weight_into,
                double weight_value, std::size_t elements, cudaStream_t stream);

/// values *= factor, in float for 16-bit types. Floating-point types only.
void scale(DType dtype, void* values, double factor, std::size_t elements, cudaStream_t stream);

/// Fills with the value that changes nothing: 0 for sum and avg, 1 for prod, the largest for min, the least for max.
void fill_identity(DType dtype, Reduction reduction, void* to, std::size_t elements, cudaStream_t stream);

/// Loads all of these. Else each is loaded when it is first launched, which may wait for all that runs on the device: also
/// for a kernel that waits for a peer.
void load_kernels();

}  // namespace syncrun::detail::kernels

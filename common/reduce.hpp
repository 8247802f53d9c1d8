#pragma once

// Element-wise reduction of several arrays into several: the arithmetic of CPU collectives and of small outputs.

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/export_for_cuda.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail {

/// Combines sources[0], sources[1], ... element by element, in that order, and writes the result to every destination.
/// Destinations may be among the sources. `weights` (avg only; one per source) are fractions that sum to one. float16
/// and bfloat16 are combined in float. Bitwise the same for any division of the elements.
void reduce_elements(DType dtype, Reduction reduction, std::span<void* const> destinations,
                     std::span<const void* const> sources, std::span<const double> weights, std::size_t elements);

/// True if the type has the operation: all have but bool, which has none, and avg, which only floating types have.
SYNCRUN_EXPORT_FOR_CUDA bool can_reduce(DType dtype, Reduction reduction) noexcept;

/// Whether NCCL has arithmetic on the type: not on integers of 16 bits, nor on bool.
constexpr bool is_nccl_type(DType dtype) noexcept {
  return dtype != DType::int16 && dtype != DType::uint16 && dtype != DType::boolean;
}

/// can_reduce, by NCCL.
inline bool can_reduce_by_nccl(DType dtype, Reduction reduction) noexcept {
  return is_nccl_type(dtype) && can_reduce(dtype, reduction);
}

}  // namespace syncrun::detail

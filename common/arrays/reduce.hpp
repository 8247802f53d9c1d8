#pragma once

// Element-wise reduction of several arrays. CPU collectives use it, and the master uses it for small outputs.

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/code/export_for_cuda.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail {

/// Combines sources[0], sources[1], ... element by element, in that order, and writes the result to every destination.
/// Destinations may be among the sources. `weights` is used for avg only. It has one fraction per source, and their sum
/// is one. float16 and bfloat16 are combined in float. The bits of the result do not depend on how the elements are
/// divided among calls. can_reduce must be true for the type and the reduction.
void reduce_elements(DType dtype, Reduction reduction, std::span<void* const> destinations,
                     std::span<const void* const> sources, std::span<const double> weights, std::size_t elements);

/// True if the type supports the reduction. Floating types support all except gather, and integers all except gather
/// and avg. bool supports none.
SYNCRUN_EXPORT_FOR_CUDA bool can_reduce(DType dtype, Reduction reduction) noexcept;

/// Whether NCCL supports arithmetic on the type. It does not support integers of 16 bits and bool.
constexpr bool is_nccl_type(DType dtype) noexcept {
  return dtype != DType::int16 && dtype != DType::uint16 && dtype != DType::boolean;
}

/// True if NCCL supports the reduction for the type.
inline bool can_reduce_by_nccl(DType dtype, Reduction reduction) noexcept {
  return is_nccl_type(dtype) && can_reduce(dtype, reduction);
}

}  // namespace syncrun::detail

#pragma once

// Element-wise reduction of several arrays. CPU collectives use it, and the master uses it for small outputs.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/export_for_cuda.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail::arrays {

/// The type of partial results, to which more values will be added. A partial sum in 16 bits would lose small values, so
/// float16 and bfloat16 have partial results in float32. Other types keep their own type.
constexpr DType partial_type(DType dtype) noexcept {
  return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype;
}

/// The types of the sources and of the destinations. They are the same, or one of them is the partial_type of the other.
struct ElementTypes {
  ElementTypes(DType both) noexcept : from(both), to(both) {}  // NOLINT(google-explicit-constructor): the usual case
  ElementTypes(DType sources, DType destinations) noexcept : from(sources), to(destinations) {}
  DType from;
  DType to;
};

/// Combines sources[0], sources[1], ... element by element, in that order, and writes the result to every destination.
/// Destinations may be among the sources if their types are the same. `weights` is used for avg only. It has one fraction
/// per source, and their sum is one. float16 and bfloat16 are combined in float and rounded once. The result of min and
/// max is NaN if one of the values is NaN. The bits of the result do not depend on how the elements are divided among
/// calls. can_reduce must be true for the types and the reduction.
void reduce_elements(ElementTypes types, Reduction reduction, std::span<void* const> destinations,
                     std::span<const void* const> sources, std::span<const double> weights, std::size_t elements);

/// into = into (op) value. `value` has the type, and `into` has its partial_type. For avg, `weights` are the fractions of
/// `into` and `value`.
void accumulate_elements(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                         std::size_t elements);

/// Copies elements from one type to the other. The values are rounded to nearest. The arrays do not overlap.
void convert_elements(ElementTypes types, const void* from, void* to, std::size_t elements);

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

}  // namespace syncrun::detail::arrays

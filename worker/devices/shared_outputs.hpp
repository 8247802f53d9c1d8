#pragma once

// Outputs that the workers of a call reduce.

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/os/segment.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail {

/// An output that the workers reduce. Its description is the same on every rank.
struct OutputReduction {
  DType dtype;
  Reduction reduction;
  std::size_t elements;
  std::span<const int> ranks;              // those that computed something, in order; the first gets the result
  std::span<const double> weights;         // by position in `ranks`, for avg: they sum to 1
  std::span<const std::uint64_t> offsets;  // by position in `ranks`: where the output is in the segment
};

/// Reduces this rank's part of the elements of an output that every rank has put into shared memory. Each rank that
/// computed something calls it, and they write the result into the memory of the first of them. On other ranks, it does
/// nothing. Any kind of device can have computed the values.
void reduce_shared_output(const Segment& segment, int rank, const OutputReduction& what);

}  // namespace syncrun::detail

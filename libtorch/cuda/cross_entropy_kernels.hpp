#pragma once

// The kernels of cross_entropy().

#include <cuda_runtime_api.h>

#include <cstdint>

#include "libtorch/cuda/kernel_types.hpp"

namespace syncrun::libtorch::detail::kernels {

/// All arrays are contiguous in device memory. Sums and results are float64 for float64 scores, otherwise float32. There is
/// at least one row and one class, and there are at most 2^31 - 1 rows.
struct CrossEntropyRows {
  Element type;
  const void* scores;  // [rows, classes]
  const std::int64_t* targets;
  std::int64_t rows;
  std::int64_t classes;
  std::int64_t ignore_index;
  void* sums;  // [rows, 2]: the largest score, and the logarithm of the sum of exp(score - largest)
};

/// Writes the sums, the loss of each row to `losses` [rows], their mean to `loss`, and the number of targets that count to
/// `count`. In stream order. Equal arguments give equal bits.
cudaError_t cross_entropy(const CrossEntropyRows& rows, void* losses, void* loss, void* count, cudaStream_t stream);
/// Writes the gradient of the scores to `gradient` [rows, classes], of their type. `upstream` is the gradient of the loss.
/// Reads the sums and `count`. In stream order. The gradient of a row whose target is no class is NaN.
cudaError_t cross_entropy_gradient(const CrossEntropyRows& rows, const void* upstream, const void* count,
                                   void* gradient, cudaStream_t stream);

}  // namespace syncrun::libtorch::detail::kernels

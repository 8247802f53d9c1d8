#pragma once

// The kernels of linear(), layer_norm(), add_layer_norm() and embedding().

#include <cuda_runtime_api.h>

#include <cstdint>

#include "libtorch/cuda/kernel_types.hpp"

namespace syncrun::libtorch::detail::kernels {

/// A matrix in device memory, one row after the other, with at least one element.
struct Matrix {
  Element type;
  const void* elements;
  std::int64_t rows;
  std::int64_t width;
};

/// How many numbers the kernel for the sums of columns needs for its first pass. `sums`: 1, or 2 for layer_norm_sums.
std::int64_t scratch_of_column_sums(const Matrix& matrix, int sums);
/// Writes the sum of each column to `results` [width]. Sums are float64 for float64, otherwise float32. Here and below, they
/// have an order that depends only on sizes and on the alignment of addresses, and work is in stream order.
cudaError_t column_sums(const Matrix& matrix, void* scratch, void* results, cudaStream_t stream);

/// Sums, `weight`, `bias` [width], `means` and `scales` [rows] are float64 for float64 rows, otherwise float32.
struct Normalization {
  Matrix x;            // for gradients: what was normalized, x + change
  const void* weight;  // may be null: 1
  const void* bias;    // may be null: 0
  double epsilon;      // added to the variance of a row
  Element type_of_y;   // that of x, or bfloat16 for float32
  void* means;
  void* scales;  // 1 / sqrt(variance + epsilon)
};
/// What is added to the rows before they are normalized.
struct Addition {
  const void* change = nullptr;  // null: nothing
  Element type{};                // of the change: that of x, or bfloat16 for float32
  void* sum = nullptr;           // gets x + change, in the type of x
};
/// With s = x + change: writes s, means, scales, and y = (s - mean) * scale * weight + bias.
cudaError_t layer_norm(const Normalization& of, const Addition& addition, void* y, cudaStream_t stream);
/// The arrays of layer_norm_gradient. dx and ds have the type of x, and dy has that of y.
struct NormalizationGradient {
  const void* dy;
  const void* ds;      // may be null: 0
  void* dx;            // gets the gradient
  void* short_change;  // null, or gets the same in bfloat16, for float32 x
};
/// Writes the gradient of s, which is also that of x and of the change. Reads means and scales. With g = dy * weight and
/// n = (s - mean) * scale: dx = ds + scale * (g - mean(g) - n * mean(g * n)).
cudaError_t layer_norm_gradient(const Normalization& of, const NormalizationGradient& gradient, cudaStream_t stream);
/// Writes the gradients of weight and bias to `results` [2, width]: the sums over the rows of dy * n and of dy.
cudaError_t layer_norm_sums(const Normalization& of, const void* dy, void* scratch, void* results, cudaStream_t stream);

/// The rows of a table that tokens choose.
struct ChosenRows {
  const std::int64_t* tokens;  // one for each row of dy
  Matrix dy;
  std::int64_t vocabulary;
};
/// How many numbers embedding_gradient needs for its first pass. 0 if one pass is enough.
std::int64_t scratch_of_embedding(const ChosenRows& chosen);
/// Writes the gradient of the table to `results` [vocabulary, width]: for each token, the sum of the rows of dy that
/// belong to it. Reads all tokens for each entry of the vocabulary, which is faster than sorting them if it is small.
cudaError_t embedding_gradient(const ChosenRows& chosen, void* scratch, void* results, cudaStream_t stream);

}  // namespace syncrun::libtorch::detail::kernels

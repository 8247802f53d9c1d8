#pragma once

// The only BLAS routine that the demos need: the product of dense row-major matrices.

#include <cstddef>

namespace demos {

enum class Transpose { kNo, kYes };

/// How CUDA devices compute matrix products of floats. kFull uses all bits of the factors. kTf32 rounds the factors to
/// TF32, which has ten bits of mantissa. Tensor cores multiply those several times faster.
enum class MatrixMath { kFull, kTf32 };

/// Sizes of C [m, n] = op(A) [m, k] * op(B) [k, n].
struct GemmShape {
  std::size_t m;
  std::size_t n;
  std::size_t k;
};

/// C = op(A) op(B) + beta C, where op is the identity or the transpose. All matrices are row-major and without gaps. A
/// is stored as [m, k], or as [k, m] if `transpose_a` is kYes. B is stored as [k, n], or as [n, k] if `transpose_b` is
/// kYes. If beta is 0, C is only written. T is float or double. Calls cblas if the build found one, otherwise
/// gemm_portable. Throws std::length_error if a size does not fit the int of cblas.
template <typename T>
void gemm(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta, T* c);

/// The same in plain C++ without allocation. It divides the matrices into blocks that fit the caches, packs the
/// operands into panels, and keeps the inner tile in registers. Source: K. Goto, R. van de Geijn, "Anatomy of
/// High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
template <typename T>
void gemm_portable(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta, T* c);

}  // namespace demos

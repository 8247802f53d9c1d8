#pragma once

// The one BLAS routine the demos need, typed by overload: dense row-major matrix product.

#include <cstddef>

namespace demos {

enum class Transpose { kNo, kYes };

/// How matrix products of floats are computed on a CUDA device: with all their bits, or with factors rounded to the
/// ten bits of TF32, which tensor cores multiply several times faster.
enum class MatrixMath { kFull, kTf32 };

/// Sizes of C [m, n] = op(A) [m, k] * op(B) [k, n].
struct GemmShape {
  std::size_t m;
  std::size_t n;
  std::size_t k;
};

/// C = op(A) op(B) + beta C, all row-major and without gaps; op transposes where asked. A is stored [m, k],
/// or [k, m] where `transpose_a`; B is stored [k, n], or [n, k] where `transpose_b`. With beta 0, C is only
/// written. T is float or double. Through cblas where the build found one, else gemm_portable. Throws
/// std::length_error where a size does not fit the int of cblas.
template <typename T>
void gemm(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta, T* c);

/// The same in plain C++ without allocation: blocked for the caches, the operands packed into panels, the
/// inner tile held in registers. Source: K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix
/// Multiplication", ACM TOMS 34(3), 2008.
template <typename T>
void gemm_portable(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta, T* c);

}  // namespace demos

#include "demos/common/blas.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#ifdef DEMOS_HAVE_CBLAS
#include <cblas.h>
#endif

namespace demos {
namespace {

// The tile stays in registers, a packed panel of B in the first-level cache, and the packed block of A in the
// second-level cache.
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileCols = 8;
constexpr std::size_t kBlockM = 64;
constexpr std::size_t kBlockN = 128;
constexpr std::size_t kBlockK = 128;

template <typename T>
using Tile = std::array<std::array<T, kTileCols>, kTileRows>;

/// A stored matrix seen through op(): element (i, j) is data[i * row_stride + j * col_stride].
template <typename T>
struct Operand {
  const T* data;
  std::size_t row_stride;
  std::size_t col_stride;

  T at(std::size_t i, std::size_t j) const { return data[i * row_stride + j * col_stride]; }
  Operand transposed() const { return {data, col_stride, row_stride}; }
};

template <typename T>
Operand<T> operand(const T* data, Transpose transpose, std::size_t rows, std::size_t cols) {
  if (transpose == Transpose::kYes) return {data, 1, rows};
  return {data, cols, 1};
}

/// The start and the size of a block along one dimension of a matrix.
struct Extent {
  std::size_t begin;
  std::size_t size;
};

Extent block_at(std::size_t begin, std::size_t block, std::size_t end) { return {begin, std::min(block, end - begin)}; }

/// Packs rows x depth of `from` into panels of kPanel rows, depth-major. Fills the last panel with zeros.
template <std::size_t kPanel, typename T>
void pack(const Operand<T>& from, Extent rows, Extent depth, T* to) {
  for (std::size_t i = 0; i < rows.size; i += kPanel) {
    const std::size_t filled = std::min(kPanel, rows.size - i);
    for (std::size_t p = 0; p < depth.size; ++p, to += kPanel) {
      for (std::size_t r = 0; r < filled; ++r) to[r] = from.at(rows.begin + i + r, depth.begin + p);
      for (std::size_t r = filled; r < kPanel; ++r) to[r] = T{0};
    }
  }
}

template <typename T>
Tile<T> multiply_panels(std::size_t depth, const T* a, const T* b) {
  Tile<T> sum{};
  for (std::size_t p = 0; p < depth; ++p, a += kTileRows, b += kTileCols) {
    for (std::size_t r = 0; r < kTileRows; ++r) {
      for (std::size_t s = 0; s < kTileCols; ++s) sum[r][s] += a[r] * b[s];
    }
  }
  return sum;
}

template <typename T>
void add_tile(const Tile<T>& tile, std::size_t rows, std::size_t cols, std::size_t stride, T* c) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t s = 0; s < cols; ++s) c[r * stride + s] += tile[r][s];
  }
}

template <typename T>
void multiply_block(Extent m, Extent n, std::size_t depth, const T* a, const T* b, std::size_t stride, T* c) {
  for (std::size_t j = 0; j < n.size; j += kTileCols) {
    for (std::size_t i = 0; i < m.size; i += kTileRows) {
      add_tile(multiply_panels(depth, a + i * depth, b + j * depth), std::min(kTileRows, m.size - i),
               std::min(kTileCols, n.size - j), stride, c + (m.begin + i) * stride + n.begin + j);
    }
  }
}

template <typename T>
void scale(std::size_t count, T factor, T* values) {
  if (factor == T{0}) {
    std::fill_n(values, count, T{0});
  } else if (factor != T{1}) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  }
}

#ifdef DEMOS_HAVE_CBLAS

int blas_int(std::size_t value) {
  if (value > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw std::length_error("gemm: expected sizes up to 2147483647, got " + std::to_string(value));
  }
  return static_cast<int>(value);
}

CBLAS_TRANSPOSE blas_transpose(Transpose transpose) { return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans; }

template <typename T>
void gemm_cblas(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta, T* c) {
  const int m = blas_int(shape.m);
  const int n = blas_int(shape.n);
  const int k = blas_int(shape.k);
  const int stride_a = transpose_a == Transpose::kYes ? m : k;
  const int stride_b = transpose_b == Transpose::kYes ? k : n;
  const CBLAS_TRANSPOSE op_a = blas_transpose(transpose_a);
  const CBLAS_TRANSPOSE op_b = blas_transpose(transpose_b);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, 1.0F, a, stride_a, b, stride_b, beta, c, n);
  } else {
    cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, 1.0, a, stride_a, b, stride_b, beta, c, n);
  }
}

#endif

}  // namespace

template <typename T>
void gemm_portable(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta,
                   T* c) {
  alignas(64) std::array<T, kBlockM * kBlockK> packed_a;
  alignas(64) std::array<T, kBlockN * kBlockK> packed_b;
  const Operand<T> op_a = operand(a, transpose_a, shape.m, shape.k);
  const Operand<T> op_b = operand(b, transpose_b, shape.k, shape.n);
  scale(shape.m * shape.n, beta, c);
  for (std::size_t p = 0; p < shape.k; p += kBlockK) {
    const Extent depth = block_at(p, kBlockK, shape.k);
    for (std::size_t j = 0; j < shape.n; j += kBlockN) {
      const Extent cols = block_at(j, kBlockN, shape.n);
      pack<kTileCols>(op_b.transposed(), cols, depth, packed_b.data());
      for (std::size_t i = 0; i < shape.m; i += kBlockM) {
        const Extent rows = block_at(i, kBlockM, shape.m);
        pack<kTileRows>(op_a, rows, depth, packed_a.data());
        multiply_block(rows, cols, depth.size, packed_a.data(), packed_b.data(), shape.n, c);
      }
    }
  }
}

template <typename T>
void gemm(Transpose transpose_a, Transpose transpose_b, GemmShape shape, const T* a, const T* b, T beta, T* c) {
  if (shape.m == 0 || shape.n == 0) return;
#ifdef DEMOS_HAVE_CBLAS
  if (shape.k > 0) return gemm_cblas(transpose_a, transpose_b, shape, a, b, beta, c);
#endif
  gemm_portable(transpose_a, transpose_b, shape, a, b, beta, c);
}

template void gemm<float>(Transpose, Transpose, GemmShape, const float*, const float*, float, float*);
template void gemm<double>(Transpose, Transpose, GemmShape, const double*, const double*, double, double*);
template void gemm_portable<float>(Transpose, Transpose, GemmShape, const float*, const float*, float, float*);
template void gemm_portable<double>(Transpose, Transpose, GemmShape, const double*, const double*, double, double*);

}  // namespace demos

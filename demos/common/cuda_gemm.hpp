#pragma once

// The product of dense row-major matrices on a CUDA device, computed by cuBLAS. It is the counterpart of blas.hpp. This
// header needs no CUDA header.

#include "demos/common/blas.hpp"
#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"

namespace demos {

/// C = op(A) op(B), as demos::gemm with beta 0, on the handle's stream. T is float or double. Throws std::runtime_error
/// if cuBLAS fails, and std::length_error if a size does not fit an int.
template <typename T>
void cuda_gemm(cublasContext* cublas, MatrixMath math, Transpose transpose_a, Transpose transpose_b, GemmShape shape,
               const T* a, const T* b, T* c);

/// A second stream, for products that the work on the main stream need not wait for. A small product leaves most of a
/// device idle, so work on the main stream can run at the same time. Work goes
///
///   main:  ... --fork()--> ... ------> join()--> ...
///   side:         \--> what is put there --/
///
/// and can be captured into a CUDA graph, because the side stream is joined to the main stream again.
class CudaSideStream {
 public:
  /// On the current device. Throws std::runtime_error.
  CudaSideStream();

  /// Work put on the side stream from now on runs after the work that is on `main` now.
  void fork(CUstream_st* main);
  /// Work put on `main` from now on runs after the work that is on the side stream now. Does nothing if fork has not
  /// been called since the last join.
  void join(CUstream_st* main);
  /// A handle bound to the side stream. It has a workspace of its own, because two streams must not share one.
  cublasContext* cublas() const noexcept { return cublas_.get(); }

 private:
  CudaStream stream_;
  CudaEvent forked_;
  CudaEvent joined_;
  bool is_forked_ = false;
  DeviceBuffer workspace_;
  CublasHandle cublas_;
};

}  // namespace demos

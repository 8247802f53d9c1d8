#pragma once

// Dense row-major matrix product on a CUDA device, through cuBLAS; the counterpart of blas.hpp. Needs no CUDA header.

#include "demos/common/blas.hpp"
#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"

namespace demos {

/// C = op(A) op(B) as demos::gemm with beta 0, on the handle's stream. T is float or double. Throws std::runtime_error,
/// std::length_error where a size does not fit an int.
template <typename T>
void cuda_gemm(cublasContext* cublas, MatrixMath math, Transpose transpose_a, Transpose transpose_b, GemmShape shape,
               const T* a, const T* b, T* c);

/// A second stream for products that others need not wait for: small ones leave most of a device idle. Work goes
///
///   main:  ... --fork()--> ... ------> join()--> ...
///   side:         \--> what is put there --/
///
/// and can be captured: what leaves the main stream comes back to it.
class CudaSideStream {
 public:
  /// On the current device. Throws std::runtime_error.
  CudaSideStream();

  /// What is put on the side stream from now on runs after what is on `main` now.
  void fork(CUstream_st* main);
  /// What is put on `main` from now on runs after what is on the side stream now. Nothing to do where nothing was
  /// forked since the last time.
  void join(CUstream_st* main);
  /// A handle bound to the side stream, with a workspace of its own: two streams must not share one.
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

#include "demos/common/cuda_gemm.hpp"

#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "demos/common/cuda_check.hpp"

namespace demos {
namespace {

constexpr std::size_t kCublasWorkspaceBytes = std::size_t{32} << 20U;  // what cuBLAS recommends for Hopper

int checked_int(std::size_t value) {
  if (value <= static_cast<std::size_t>(std::numeric_limits<int>::max())) return static_cast<int>(value);
  throw std::length_error("cuda_gemm: expected sizes that fit an int, got " + std::to_string(value));
}

cublasOperation_t operation(Transpose transpose) { return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

template <typename T>
void cuda_gemm(cublasContext* cublas, MatrixMath math, Transpose transpose_a, Transpose transpose_b, GemmShape shape,
               const T* a, const T* b, T* c) {
  if (shape.m == 0 || shape.n == 0) return;
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  constexpr cudaDataType_t kType = kIsFloat ? CUDA_R_32F : CUDA_R_64F;
  const cublasComputeType_t compute = !kIsFloat                   ? CUBLAS_COMPUTE_64F
                                      : math == MatrixMath::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                  : CUBLAS_COMPUTE_32F;
  const int m = checked_int(shape.m);
  const int n = checked_int(shape.n);
  const int k = checked_int(shape.k);
  const T one = 1;
  const T zero = 0;
  // The row-major product C = A B is the column-major product C^T = B^T A^T, so the operands change places.
  check_cublas(cublasGemmEx(cublas, operation(transpose_b), operation(transpose_a), n, m, k, &one, b, kType,
                            transpose_b == Transpose::kYes ? k : n, a, kType, transpose_a == Transpose::kYes ? m : k,
                            &zero, c, kType, n, compute, CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx");
}

CudaSideStream::CudaSideStream()
    : stream_(make_cuda_stream()),
      forked_(make_cuda_event(EventUse::kOrder)),
      joined_(make_cuda_event(EventUse::kOrder)),
      workspace_(kCublasWorkspaceBytes),
      cublas_(make_cublas(stream_.get())) {
  check_cublas(cublasSetWorkspace(cublas_.get(), workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
}

void CudaSideStream::fork(CUstream_st* main) {
  check_cuda(cudaEventRecord(forked_.get(), main), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(stream_.get(), forked_.get(), 0), "cudaStreamWaitEvent");
  is_forked_ = true;
}

void CudaSideStream::join(CUstream_st* main) {
  if (!is_forked_) return;
  is_forked_ = false;
  check_cuda(cudaEventRecord(joined_.get(), stream_.get()), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(main, joined_.get(), 0), "cudaStreamWaitEvent");
}

template void cuda_gemm<float>(cublasContext*, MatrixMath, Transpose, Transpose, GemmShape, const float*, const float*,
                               float*);
template void cuda_gemm<double>(cublasContext*, MatrixMath, Transpose, Transpose, GemmShape, const double*,
                                const double*, double*);

}  // namespace demos

#pragma once

// The functions of CUDA that the probe calls. A worker of a GPU has loaded their libraries already, and the probe finds them
// there. So it is built without CUDA, and runs where there is none. The declarations are those of CUDA's headers.

#include <cstddef>

struct CUstream_st;
struct cublasContext;

namespace syncrun::detail::master::doctor::probe {

struct CudaCalls {
  /// Throws std::runtime_error if this process has not loaded CUDA.
  CudaCalls();

  int (*malloc_host)(void** memory, std::size_t bytes) = nullptr;
  int (*free_host)(void* memory) = nullptr;
  int (*copy_async)(void* to, const void* from, std::size_t bytes, int kind, CUstream_st* stream) = nullptr;
  int (*synchronize)(CUstream_st* stream) = nullptr;
  int (*multiply)(cublasContext* handle, int transposes_a, int transposes_b, int m, int n, int k, const float* alpha,
                  const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) = nullptr;
};

/// Throws std::runtime_error, with the name of the function, if the code of CUDA or cuBLAS is no success.
void check_cuda(int code, const char* function);

}  // namespace syncrun::detail::master::doctor::probe

#pragma once

// Throws exceptions for CUDA's error codes, with the library's own text.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

namespace demos {

/// Throws std::runtime_error unless `code` is cudaSuccess. `what` names the call. The message is, for example,
/// "cudaMalloc: out of memory (cudaErrorMemoryAllocation)".
void check_cuda(cudaError_t code, const char* what);

/// The same for cuBLAS.
void check_cublas(cublasStatus_t code, const char* what);

}  // namespace demos

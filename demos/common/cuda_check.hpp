#pragma once

// CUDA's return codes as exceptions, with the library's own text.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

namespace demos {

/// Throws std::runtime_error unless `code` is cudaSuccess: "cudaMalloc: out of memory (cudaErrorMemoryAllocation)".
void check_cuda(cudaError_t code, const char* what);

/// The same for cuBLAS.
void check_cublas(cublasStatus_t code, const char* what);

}  // namespace demos

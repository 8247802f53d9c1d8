#pragma once

// CUDA's return codes as Error, with the library's own text.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <source_location>

namespace syncrun::detail {

/// Throws Error (cuda) unless `code` is cudaSuccess: "<what>: an illegal memory access was encountered
/// (cudaErrorIllegalAddress)".
void check_cuda(cudaError_t code, const char* what, std::source_location where = std::source_location::current());

/// The same for cuBLAS.
void check_cublas(cublasStatus_t code, const char* what, std::source_location where = std::source_location::current());

/// After these nothing works any more on this process's GPU: its context is lost.
bool is_sticky(cudaError_t code) noexcept;

}  // namespace syncrun::detail

#pragma once

// Turns return codes of CUDA and cuBLAS into Error, with the text that these libraries give.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <source_location>

namespace syncrun::detail::worker::devices::cuda {

/// Throws Error (cuda) unless `code` is cudaSuccess: "<what>: an illegal memory access was encountered
/// (cudaErrorIllegalAddress)".
void check_cuda(cudaError_t code, const char* what, std::source_location where = std::source_location::current());

/// The same for cuBLAS.
void check_cublas(cublasStatus_t code, const char* what, std::source_location where = std::source_location::current());

/// Whether the process has lost the context of its GPU with this error. Then no later operation on this GPU works.
bool is_sticky(cudaError_t code) noexcept;

/// The same for what cudaStreamQuery has returned for a stream of this process.
bool shows_a_lost_context(cudaError_t query) noexcept;

}  // namespace syncrun::detail::worker::devices::cuda

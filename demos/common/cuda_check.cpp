#include "demos/common/cuda_check.hpp"

#include <stdexcept>
#include <string>

namespace demos {

void check_cuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears the error, so that the next check does not find it again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

void check_cublas(cublasStatus_t code, const char* what) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + ": " + cublasGetStatusString(code));
}

}  // namespace demos

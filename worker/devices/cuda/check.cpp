#include "worker/devices/cuda/check.hpp"

#include <string>

#include "syncrun/error.hpp"

namespace syncrun::detail {

void check_cuda(cudaError_t code, const char* what, std::source_location where) {
  if (code == cudaSuccess) return;
  std::string message = std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")";
  if (is_sticky(code)) {
    message +=
        "; this GPU's context is lost, and the session with it (the work that did it was put on the stream before; "
        "compute-sanitizer finds it)";
  }
  throw Error(ErrorKind::cuda, message, static_cast<int>(code), where);
}

void check_cublas(cublasStatus_t code, const char* what, std::source_location where) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorKind::cuda, std::string(what) + ": " + cublasGetStatusString(code), static_cast<int>(code), where);
}

bool is_sticky(cudaError_t code) noexcept {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorContained:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

}  // namespace syncrun::detail

#include "worker/devices/cuda/check.hpp"

#include <string>

#include "syncrun/error.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

/// Among the sticky codes: those of a kernel that did something wrong.
bool is_of_a_kernel(cudaError_t code) noexcept {
  return code >= cudaErrorIllegalAddress && code < cudaErrorNotPermitted && code != cudaErrorContextIsDestroyed;
}

}  // namespace

void check_cuda(cudaError_t code, const char* what, std::source_location where) {
  if (code == cudaSuccess) return;
  std::string message = std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")";
  if (is_sticky(code)) {
    message += "; this GPU's context is lost, so the worker can no longer use it. ";
    message += is_of_a_kernel(code) ? "Work that was put on the stream before has done it; compute-sanitizer finds it"
                                    : "The kernel's log (dmesg, lines with Xid) may say why";
  }
  throw Error(ErrorKind::cuda, message, static_cast<int>(code), where);
}

void check_cublas(cublasStatus_t code, const char* what, std::source_location where) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorKind::cuda, std::string(what) + ": " + cublasGetStatusString(code), static_cast<int>(code), where);
}

/// The codes of which the CUDA documentation says that the process must be relaunched, and those that mean the same: an
/// uncorrectable error of the hardware, a context that no longer exists, and a server of MPS that ended. Errors of work on
/// the device belong here. Errors of a call that was refused do not.
bool is_sticky(cudaError_t code) noexcept {
  // The headers of CUDA 12 do not have all of these names.
  constexpr int kContained = 226;
  constexpr int kTensorMemoryLeak = 721;
  switch (static_cast<int>(code)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case kContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case kTensorMemoryLeak:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

/// The driver reports the error of a lost context again at each query, and only such errors. So this also recognises
/// codes that is_sticky() does not know.
bool shows_a_lost_context(cudaError_t query) noexcept {
  switch (query) {
    case cudaSuccess:
    case cudaErrorNotReady: return false;
    default:  // a stream that is being captured cannot be queried
      return query < cudaErrorStreamCaptureUnsupported || query > cudaErrorStreamCaptureWrongThread;
  }
}

}  // namespace syncrun::detail::worker::devices::cuda

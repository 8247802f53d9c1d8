#include "demos/common/cuda_owners.hpp"

#include <stdexcept>
#include <string>

#include "demos/common/cuda_check.hpp"
#ifdef DEMOS_HAVE_CUDNN
#include <cudnn.h>
#endif

namespace demos {

void EndCuda::operator()(CUstream_st* stream) const noexcept { static_cast<void>(cudaStreamDestroy(stream)); }
void EndCuda::operator()(CUevent_st* event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
void EndCuda::operator()(CUgraphExec_st* graph) const noexcept { static_cast<void>(cudaGraphExecDestroy(graph)); }
void EndCuda::operator()(cublasContext* handle) const noexcept { static_cast<void>(cublasDestroy(handle)); }

CudaStream make_cuda_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return CudaStream(stream);
}

CudaEvent make_cuda_event(EventUse use) {
  cudaEvent_t event = nullptr;
  const unsigned flags = use == EventUse::kTime ? cudaEventDefault : cudaEventDisableTiming;
  check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
  return CudaEvent(event);
}

CublasHandle make_cublas(CUstream_st* stream) {
  cublasHandle_t handle = nullptr;
  check_cublas(cublasCreate(&handle), "cublasCreate");
  CublasHandle made(handle);
  check_cublas(cublasSetStream(handle, stream), "cublasSetStream");
  return made;
}

#ifdef DEMOS_HAVE_CUDNN

namespace {

void check_cudnn(cudnnStatus_t code, const char* what) {
  if (code != CUDNN_STATUS_SUCCESS) throw std::runtime_error(std::string(what) + ": " + cudnnGetErrorString(code));
}

}  // namespace

void EndCuda::operator()(cudnnContext* handle) const noexcept { static_cast<void>(cudnnDestroy(handle)); }

CudnnHandle make_cudnn(CUstream_st* stream) {
  cudnnHandle_t handle = nullptr;
  check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  CudnnHandle made(handle);
  check_cudnn(cudnnSetStream(handle, stream), "cudnnSetStream");
  return made;
}

#else

void EndCuda::operator()(cudnnContext*) const noexcept {}

CudnnHandle make_cudnn(CUstream_st*) { throw std::runtime_error("built without cuDNN"); }

#endif

}  // namespace demos

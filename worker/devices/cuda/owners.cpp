#include "worker/devices/cuda/owners.hpp"

#include <string>

#include "common/os/libraries.hpp"
#include "syncrun/error.hpp"
#include "worker/devices/cuda/check.hpp"

#ifdef SYNCRUN_HAVE_CUDNN
#include <cudnn.h>
#endif

namespace syncrun::detail::worker::devices::cuda {

StreamPriorities stream_priorities() {
  StreamPriorities priorities;
  check_cuda(cudaDeviceGetStreamPriorityRange(&priorities.least, &priorities.most), "cudaDeviceGetStreamPriorityRange");
  return priorities;
}

Stream Stream::make() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return Stream(stream);
}

Stream Stream::make(int priority) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreate");
  return Stream(stream);
}

Event Event::make() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return Event(event);
}

CublasHandle CublasHandle::make() {
  cublasHandle_t handle = nullptr;
  check_cublas(cublasCreate(&handle), "cublasCreate");
  return CublasHandle(handle);
}

#ifdef SYNCRUN_HAVE_CUDNN

CudnnHandle CudnnHandle::make(StreamView stream) {
  os::require_version("cuDNN", "libcudnn.so", os::LibraryVersion::of_number(static_cast<long>(cudnnGetVersion())),
                      "Syncrun", {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL});
  cudnnHandle_t handle = nullptr;
  cudnnStatus_t code = cudnnCreate(&handle);
  CudnnHandle made(handle);
  if (code == CUDNN_STATUS_SUCCESS) code = cudnnSetStream(handle, stream);
  if (code == CUDNN_STATUS_SUCCESS) return made;
  throw Error(ErrorKind::cuda, std::string("cudnnCreate: ") + cudnnGetErrorString(code), static_cast<int>(code));
}

int end_cudnn(cudnnContext* handle) noexcept { return static_cast<int>(cudnnDestroy(handle)); }

#else

CudnnHandle CudnnHandle::make(StreamView) {
  throw Error(ErrorKind::cuda, "this Syncrun was built without cuDNN: install it and build again");
}

int end_cudnn(cudnnContext*) noexcept { return 0; }

#endif

PinnedMemory PinnedMemory::make(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), what);
  return PinnedMemory(memory);
}

}  // namespace syncrun::detail::worker::devices::cuda

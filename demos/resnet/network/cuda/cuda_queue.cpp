#include "demos/resnet/network/cuda/cuda_queue.hpp"

#include "demos/common/cuda_check.hpp"

namespace resnet {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

}  // namespace

CudaQueue::CudaQueue()
    : workspace_(kWorkspaceBytes),
      stream_(demos::make_cuda_stream()),
      cublas_(demos::make_cublas(stream_.get())),
      cudnn_(demos::make_cudnn(stream_.get())) {
  // This must come after the stream is set, because setting the stream resets the workspace.
  demos::check_cublas(cublasSetWorkspace(cublas_.get(), workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
}

}  // namespace resnet

#include "demos/resnet/cuda_queue.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <stdexcept>
#include <string>

#include "demos/common/cuda_check.hpp"

namespace resnet {
namespace {

using demos::check_cublas;
using demos::check_cuda;

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw std::runtime_error(std::string(what) + ": " + cudnnGetErrorString(status));
}

}  // namespace

CudaQueue::CudaQueue() : workspace_(kWorkspaceBytes) {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check_cublas(cublasCreate(&cublas_), "cublasCreate");
  check_cublas(cublasSetStream(cublas_, stream_), "cublasSetStream");  // which forgets the workspace
  check_cublas(cublasSetWorkspace(cublas_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
  check_cudnn(cudnnCreate(&cudnn_), "cudnnCreate");
  check_cudnn(cudnnSetStream(cudnn_, stream_), "cudnnSetStream");
}

CudaQueue::~CudaQueue() {
  static_cast<void>(cudnnDestroy(cudnn_));
  static_cast<void>(cublasDestroy(cublas_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

}  // namespace resnet

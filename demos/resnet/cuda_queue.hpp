#pragma once

// What a CudaNetwork wants where no worker gives it: a stream with its handles. For tests and benchmarks. Needs no CUDA
// header.

#include "demos/common/cuda_memory.hpp"
#include "demos/resnet/cuda_network.hpp"

namespace resnet {

/// On the device that is current when it is made. Throws std::runtime_error where CUDA, cuBLAS or cuDNN fails.
class CudaQueue {
 public:
  CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;
  ~CudaQueue();

  CudaHandles handles() const noexcept { return {stream_, cublas_, cudnn_}; }
  CUstream_st* stream() const noexcept { return stream_; }

 private:
  demos::DeviceBuffer workspace_;  // cuBLAS's: what is captured may not allocate its own
  CUstream_st* stream_ = nullptr;
  cublasContext* cublas_ = nullptr;
  cudnnContext* cudnn_ = nullptr;
};

}  // namespace resnet

#pragma once

// What a CudaNetwork wants where no worker gives it: a stream with its handles. For tests and benchmarks. Needs no CUDA
// header.

#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/resnet/cuda_network.hpp"

namespace resnet {

/// On the device that is current when it is made. Throws std::runtime_error where CUDA, cuBLAS or cuDNN fails.
class CudaQueue {
 public:
  CudaQueue();

  CudaHandles handles() const noexcept { return {stream_.get(), cublas_.get(), cudnn_.get()}; }
  CUstream_st* stream() const noexcept { return stream_.get(); }

 private:
  demos::DeviceBuffer workspace_;  // cuBLAS's: what is captured may not allocate its own
  demos::CudaStream stream_;
  demos::CublasHandle cublas_;
  demos::CudnnHandle cudnn_;
};

}  // namespace resnet

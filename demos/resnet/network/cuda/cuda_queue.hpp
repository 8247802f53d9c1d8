#pragma once

// A stream with its library handles, for a CudaNetwork that does not run in a worker. Tests and benchmarks use it. This
// header needs no CUDA header.

#include "demos/common/cuda_memory.hpp"
#include "demos/common/cuda_owners.hpp"
#include "demos/resnet/network/cuda/cuda_network.hpp"

namespace resnet {

/// Works on the device that is current when it is made. Throws std::runtime_error if CUDA, cuBLAS or cuDNN fails.
class CudaQueue {
 public:
  CudaQueue();

  CudaHandles handles() const noexcept { return {stream_.get(), cublas_.get(), cudnn_.get()}; }
  CUstream_st* stream() const noexcept { return stream_.get(); }

 private:
  demos::DeviceBuffer workspace_;  // for cuBLAS, because captured work must not allocate memory
  demos::CudaStream stream_;
  demos::CublasHandle cublas_;
  demos::CudnnHandle cudnn_;
};

}  // namespace resnet

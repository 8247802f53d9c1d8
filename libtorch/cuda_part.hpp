#pragma once

// The part for CUDA devices, a library of its own (libtorch/cuda). Only workers with a GPU load it, because LibTorch's CUDA
// libraries take a quarter of a second and 350 MiB in each process.

#include <torch/torch.h>

#include <memory>

#include "syncrun/torch/torch_seam.hpp"

struct CUstream_st;

namespace syncrun::libtorch::detail {

/// In its lifetime, LibTorch puts the work of this thread on a stream of Syncrun. `BodyMemory` says where it takes device
/// memory from.
class CudaScope {
 public:
  CudaScope() = default;
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;
  virtual ~CudaScope() = default;
};

class CudaPart {
 public:
  CudaPart() = default;
  CudaPart(const CudaPart&) = delete;
  CudaPart& operator=(const CudaPart&) = delete;
  virtual ~CudaPart() = default;

  /// The GPU of this thread.
  virtual ::torch::Device device() = 0;
  virtual std::unique_ptr<CudaScope> enter(CUstream_st* stream, BodyMemory memory) = 0;
  /// Called before all others. Throws Error (usage) unless the process has one copy of each CUDA library, and a cuDNN that
  /// LibTorch can use.
  virtual void start() = 0;
};

/// The part for CUDA devices. Loads it at the first call. Throws Error (usage) if it cannot be loaded.
CudaPart& cuda_part();

}  // namespace syncrun::libtorch::detail

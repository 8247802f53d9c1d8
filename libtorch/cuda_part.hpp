#pragma once

// The part for CUDA devices, a library of its own (libtorch/cuda). Only workers with a GPU load it, because LibTorch's CUDA
// libraries take a quarter of a second and 350 MiB in each process.

#include <torch/torch.h>

#include <memory>

#include "libtorch/gpu_operations.hpp"
#include "syncrun/torch/torch_interface.hpp"

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
  /// While an object lives, the worker's thread waits for the backward pass, which LibTorch runs on a thread of its own. So
  /// that thread may make Syncrun return memory that it does not use.
  class Waiting {
   public:
    explicit Waiting(CudaPart* part) : part_(part) { set(true); }
    ~Waiting() { set(false); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    void set(bool waits) {
      if (part_ != nullptr) part_->note_waiting(waits);
    }
    CudaPart* part_;
  };
  virtual void note_waiting(bool waits) noexcept = 0;
  virtual GpuOperations& operations() = 0;
  /// Called before all others. Throws Error (usage) unless the process has one copy of each CUDA library, and a cuDNN
  /// and an NCCL that LibTorch can use.
  virtual void start() = 0;
};

/// The part for CUDA devices. Loads it at the first call. Throws Error (usage) if it cannot be loaded.
CudaPart& cuda_part();

}  // namespace syncrun::libtorch::detail

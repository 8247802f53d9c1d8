#pragma once

// CudaWorker: how a replicated function uses the CUDA worker that it runs on. This header includes no CUDA header.
// Instead, it declares the types to which CUDA's stream and handle types point.

#include "syncrun/any_worker.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/worker.hpp"

struct CUstream_st;    // cudaStream_t is a CUstream_st*
struct cublasContext;  // cublasHandle_t is a cublasContext*
struct cudnnContext;   // cudnnHandle_t is a cudnnContext*

namespace syncrun {

/// The CUDA worker that runs the body. The body gets it as its parameter `CudaWorker&`. The worker's GPU is the current
/// device of the thread that runs the body. Arguments, scratch memory and outputs are in device memory. The body puts
/// its work on stream(). This work runs after the body's inputs have arrived, and before the worker reads the body's
/// outputs. So the body returns without waiting for its work. The reference is valid during the call.
class SYNCRUN_EXPORT CudaWorker : public AnyWorker {
 public:
  explicit CudaWorker(detail::CommandLoop& core) noexcept : AnyWorker(core) {}

  /// The stream for the body's work. It is never the default stream.
  CUstream_st* stream() const;
  /// A cuBLAS handle that uses stream(). The handle has its own workspace, so CUDA graphs can capture its calls. The
  /// worker makes the handle at the first use. Throws Error (cuda).
  cublasContext* cublas() const;
  /// A cuDNN handle that uses stream(). The worker makes the handle at the first use. Throws Error (cuda) if this
  /// fails, or if Syncrun was built without cuDNN.
  cudnnContext* cudnn() const;
};

}  // namespace syncrun

#pragma once

// What a replicated function can ask of the CUDA worker it runs on. Needs no CUDA header: streams and library handles
// are named by the types that the CUDA headers give them.

#include "syncrun/any_worker.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/worker.hpp"

struct CUstream_st;    // cudaStream_t is a CUstream_st*
struct cublasContext;  // cublasHandle_t is a cublasContext*
struct cudnnContext;   // cudnnHandle_t is a cudnnContext*

namespace syncrun {

/// The CUDA worker a body runs on: a parameter `CudaWorker&` of a replicated function. Its GPU is the current device of
/// the thread that runs the body. Arguments, scratch and outputs are device memory, and everything is in the order of
/// stream(): what the body puts there runs after its inputs have arrived and before its outputs are taken, so a body
/// returns without waiting. Valid during the call.
class SYNCRUN_EXPORT CudaWorker : public AnyWorker {
 public:
  explicit CudaWorker(detail::WorkerCore& core) noexcept : AnyWorker(core) {}

  /// Where the body's work belongs. Never the default stream.
  CUstream_st* stream() const;
  /// A cuBLAS handle bound to stream(), with a workspace of its own, so that its calls can be captured. Made at the first
  /// use. Throws Error (cuda).
  cublasContext* cublas() const;
  /// A cuDNN handle bound to stream(). Made at the first use. Throws Error (cuda), also where this Syncrun was built
  /// without cuDNN.
  cudnnContext* cudnn() const;
};

}  // namespace syncrun

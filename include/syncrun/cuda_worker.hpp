#pragma once

// What a replicated function can ask of the CUDA worker it runs on. Needs no CUDA header: streams and library handles
// are named by the types that the CUDA headers give them.

#include <cstdint>
#include <random>
#include <span>
#include <string_view>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/worker.hpp"

struct CUstream_st;    // cudaStream_t is a CUstream_st*
struct cublasContext;  // cublasHandle_t is a cublasContext*
struct cudnnContext;   // cudnnHandle_t is a cudnnContext*

namespace syncrun {

/// The CUDA worker a body runs on: a parameter `CudaWorker&` of a replicated function. Its GPU is the current device of
/// the thread that runs the body. Arguments, scratch and outputs are device memory, and everything is in the order of
/// stream(): what the body puts there runs after its inputs have arrived and before its outputs are taken, so a body
/// returns without waiting. Valid during the call.
class SYNCRUN_EXPORT CudaWorker {
 public:
  explicit CudaWorker(detail::WorkerCore& core) noexcept : core_(&core) {}
  CudaWorker(const CudaWorker&) = delete;
  CudaWorker& operator=(const CudaWorker&) = delete;

  int rank() const noexcept;
  int world_size() const noexcept;
  /// "cuda3".
  std::string_view device() const noexcept;

  /// Where the body's work belongs. Never the default stream.
  CUstream_st* stream() const;
  /// A cuBLAS handle bound to stream(), with a workspace of its own, so that its calls can be captured. Made at the first
  /// use. Throws Error (cuda).
  cublasContext* cublas() const;
  /// A cuDNN handle bound to stream(). Made at the first use. Throws Error (cuda), also where this Syncrun was built
  /// without cuDNN.
  cudnnContext* cudnn() const;

  /// Rows this rank computes in the current slice; 1 where the call has no scattered or sliced argument.
  std::int64_t rows() const noexcept;
  /// Position of this slice's first row in the rows of the whole call.
  std::int64_t first_row() const noexcept;
  /// The current slice, from 0.
  int slice() const noexcept;

  /// Whether the caller wants this output (see Function::only): one that it does not want need not be computed.
  template <auto kOutput>  // &Stats::mean, or its number
  bool wants() const noexcept {
    return wants(detail::output_index<kOutput>());
  }
  bool wants(std::size_t output) const noexcept;

  /// Device memory of at least `elements` elements that stays allocated between calls and is overwritten by the next use;
  /// not initialised. One block per worker: a second request in the same call may move it. Throws Error (system).
  template <Element T>
  std::span<T> scratch(std::int64_t elements) {
    const std::array<std::int64_t, 1> extents{elements};
    return {static_cast<T*>(scratch_bytes(detail::checked_size(dtype_of<T>, extents))),
            static_cast<std::size_t>(elements)};
  }

  /// Random numbers of this rank for host code, seeded from the session's seed and the rank; state is kept between calls.
  std::mt19937_64& rng() noexcept;

  /// Writes one line through the worker's logger.
  void log(LogLevel level, std::string_view message);

 private:
  void* scratch_bytes(std::size_t bytes);
  detail::WorkerCore* core_;

 public:
  /// The framework's own entry.
  detail::WorkerCore& core() noexcept { return *core_; }
};

}  // namespace syncrun

#pragma once

// The functions that only CUDA devices provide: the stream and library handles that bodies use, and graphs.

#include <cstdint>
#include <memory>

#include "syncrun/cuda_worker.hpp"
#include "worker/devices/device.hpp"
#include "worker/devices/shared_outputs.hpp"

namespace syncrun::detail {

/// Captured work. Only the device knows its contents.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// A device that is a GPU. Members throw Error (cuda).
class GpuDevice : public WorkerDevice {
 public:
  GpuDevice* gpu() noexcept final { return this; }

  /// For bodies, through CudaWorker.
  virtual CUstream_st* stream() noexcept = 0;
  virtual cublasContext* cublas() = 0;
  virtual cudnnContext* cudnn() = 0;

  /// Unpins shared memory, before its pages are given back to the system.
  virtual void unpin() = 0;

  /// Reduces an output over the devices, through their communicator. Called by all ranks of a call whose devices have
  /// one. `own` is this rank's output in device memory, if it has one. On the rank that gets the result, puts it into
  /// memory of the arena and returns its offset; the caller must free it. Otherwise returns 0.
  virtual std::uint64_t reduce_output(const OutputReduction& what, OutputBuffer own) = 0;

  /// For the clipping of a gradient; see the functions of the same names in worker_seam.hpp.
  virtual void sum_squares(const UpdateWork& work, double* squares) = 0;
  virtual void take_root(double* number) = 0;

  /// Until end_capture(), work that bodies put on the stream is recorded in a graph and not run. end_capture throws
  /// Error (cuda) if something could not be captured.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;
  virtual void launch(DeviceGraph& graph) = 0;
  /// Changes whenever all graphs become invalid, because a communicator has ended.
  virtual std::uint64_t graph_generation() const noexcept { return 0; }
};

/// Makes a CUDA device with the library for CUDA devices. Throws Error (system) if this library cannot be loaded.
std::unique_ptr<GpuDevice> make_cuda_device(const DeviceContext& context);

}  // namespace syncrun::detail

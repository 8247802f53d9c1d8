#pragma once

// What a worker asks of a CUDA device beside what it asks of any device: the stream and the library handles that bodies
// use, and graphs.

#include <memory>

#include "syncrun/cuda_worker.hpp"
#include "worker/device.hpp"

namespace syncrun::detail {

/// Work that was captured; what it is made of is the device's.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// A Device that is a GPU. Members throw Error (cuda).
class GpuDevice : public Device {
 public:
  GpuDevice* gpu() noexcept final { return this; }

  /// What CudaWorker shows.
  virtual CUstream_st* stream() noexcept = 0;
  virtual cublasContext* cublas() = 0;
  virtual cudnnContext* cudnn() = 0;

  /// What bodies put on the stream until end_capture() goes into a graph instead of being done. end_capture throws what
  /// could not be captured.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;
  virtual void launch(DeviceGraph& graph) = 0;
};

/// A CUDA device, from the library beside this one. Throws Error (system) where that cannot be loaded.
std::unique_ptr<GpuDevice> make_cuda_device(const DeviceContext& context);

}  // namespace syncrun::detail

#pragma once

// A fake GPU, for tests of whole sessions on machines without one. Workers load it instead of the library for CUDA
// devices. It works as tests/worker/devices/off_host_device.hpp describes. The bodies of the tests use its stream.

#include <chrono>
#include <functional>

#include "syncrun/cuda_worker.hpp"
#include "tests/worker/devices/off_host_device.hpp"

namespace syncrun::test {

inline WorkQueue& queue_of(CudaWorker& worker) { return *reinterpret_cast<WorkQueue*>(worker.stream()); }
/// The work that a body puts on the stream of its worker. In this work, host_view() finds what is in device memory.
inline void enqueue(CudaWorker& worker, std::function<void()> work) { queue_of(worker).push_back(std::move(work)); }
/// The GPU computes for this time before it begins later work. Meanwhile the worker copies inputs of the next call.
inline void compute_for(CudaWorker& worker, std::chrono::microseconds time) { queue_of(worker).compute_for(time); }

}  // namespace syncrun::test

#pragma once

// A fake GPU, for tests of whole sessions on machines without one. Workers load it instead of the library for CUDA
// devices. It works as tests/worker/devices/off_host_device.hpp describes. The bodies of the tests use its stream.

#include <functional>

#include "syncrun/cuda_worker.hpp"
#include "tests/worker/devices/off_host_device.hpp"

namespace syncrun::test {

/// The work that a body puts on the stream of its worker. In this work, host_view() finds what is in device memory.
inline void enqueue(CudaWorker& worker, std::function<void()> work) {
  reinterpret_cast<WorkQueue*>(worker.stream())->push_back(std::move(work));
}

}  // namespace syncrun::test

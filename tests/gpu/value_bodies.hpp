#pragma once

// Replicated functions on Values, for tests on GPUs.

#include <syncrun/syncrun.hpp>

namespace gpu_test {

namespace sr = syncrun;

/// 2 x, which stays on the device.
sr::Keep<float, 1> kept_twice(sr::CudaWorker& worker, sr::Local<const float, 1> x);
/// x + y, which stays on the device.
sr::Keep<float, 1> kept_sum(sr::CudaWorker& worker, sr::Local<const float, 1> x, sr::Local<const float, 1> y);
/// Adds a number to each element, in place.
void add_to(sr::CudaWorker& worker, sr::Local<float, 1> x, float number);
/// The elements.
sr::Gather<float, 1> elements_of(sr::CudaWorker& worker, sr::Local<const float, 1> x);
/// The last element.
sr::Gather<float, 1> last_element_of(sr::CudaWorker& worker, sr::Local<const float, 1> x);
/// A result of `count` elements, all of them `value`.
sr::Keep<float, 1> kept_filled(sr::CudaWorker& worker, std::int64_t count, float value);

/// Counts how often the host code of its bodies runs.
struct HostRuns {
  std::int64_t runs = 0;
  /// Replayable: y = x + 1, and x = y.
  void step(sr::CudaWorker& worker, sr::Local<float, 1> x, sr::Local<float, 1> y);
  sr::Max<std::int64_t> count(sr::CudaWorker&) const { return runs; }
};

}  // namespace gpu_test

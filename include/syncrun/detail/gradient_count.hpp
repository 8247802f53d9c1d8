#pragma once

// GradientCount: how a body of a train step says that its gradient is a sum, and of how much.

namespace syncrun::detail {

/// The type of a parameter `GradientCount&` of the body of a train step. The gradient of such a body is that of a sum. The
/// step adds the gradients of all slices and ranks, and divides the result by the sum of their counts. The body sets its
/// count in each slice. The count of a slice without rows does not matter.
class GradientCount {
 public:
  /// On a CPU device.
  void set(double count) noexcept { count_ = count; }
  /// On a CUDA device: the count is a number in device memory, which the body's work on the stream writes.
  void set_in_device_memory(const double* place) noexcept { place_ = place; }

  double count() const noexcept { return count_; }
  const double* place() const noexcept { return place_; }

 private:
  double count_ = 0;
  const double* place_ = nullptr;
};

}  // namespace syncrun::detail

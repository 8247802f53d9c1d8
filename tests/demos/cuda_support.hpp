#pragma once

// Code that tests of the demos' CUDA code share.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "demos/common/cuda_check.hpp"
#include "demos/common/cuda_memory.hpp"

namespace demos::testing {

/// A fixture for tests that require a GPU, or several. Without them, they are reported as skipped.
template <int kGpus>
class OnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(code);
    if (count < kGpus) GTEST_SKIP() << kGpus << " GPUs wanted, " << count << " present";
  }
};
using OnGpu = OnGpus<1>;

/// Values in device memory.
template <typename E>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<E>& values) : size_(values.size()), buffer_(size_ * sizeof(E)) { write(values); }

  E* data() const { return static_cast<E*>(buffer_.data()); }
  void write(const std::vector<E>& values) {
    check_cuda(cudaMemcpy(data(), values.data(), size_ * sizeof(E), cudaMemcpyHostToDevice), "cudaMemcpy");
    // cudaMemcpy may return before the values have arrived, and the streams of the tests do not wait for it.
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// Waits for all work so far, and returns the values.
  std::vector<E> read() const {
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<E> values(size_);
    check_cuda(cudaMemcpy(values.data(), data(), size_ * sizeof(E), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  std::size_t size_;
  DeviceBuffer buffer_;
};

/// Waits for all work so far, and returns one value from device memory.
template <typename E>
E read_one(const E* place) {
  E value{};
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check_cuda(cudaMemcpy(&value, place, sizeof(E), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return value;
}

/// Expects each value to differ from the expected one by at most `tolerance` times the largest expected value.
template <typename T, typename U>
void expect_close(const std::vector<T>& expected, const std::vector<U>& got, double tolerance) {
  ASSERT_EQ(expected.size(), got.size());
  double largest = 0;
  for (const T value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance * largest) << i;
}

/// The norm of the difference of two vectors, divided by the norm of the expected one.
template <typename T>
double relative_distance(const std::vector<T>& expected, const std::vector<T>& got) {
  double difference = 0;
  double whole = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    whole += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / whole);
}

}  // namespace demos::testing

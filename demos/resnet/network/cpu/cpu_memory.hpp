#pragma once

// The memory for the values of a pass through the network. It is one block, which is laid out anew for each pass and
// its number of rows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "demos/resnet/network/architecture.hpp"
#include "demos/resnet/network/cpu/cpu_buffer.hpp"

namespace resnet {

/// The purpose of a pass. Training keeps the values that its backward pass needs. Inference overwrites them.
enum class Purpose { kTraining, kInference };

class CpuMemory {
 public:
  /// The output of a unit's convolution, and the output of the unit: normalised, and after its ReLU if there is one. In
  /// inference, both are the same memory.
  struct Unit {
    float* convolved;
    float* output;
  };

  explicit CpuMemory(const Architecture& architecture);

  /// Lays out the memory for a pass, and enlarges it if necessary. Throws the error of too_many_rows if memory runs
  /// out.
  void reserve(Purpose purpose, std::size_t rows);

  std::vector<Unit> units;
  float* pooled = nullptr;
  float* features = nullptr;
  // For training only:
  std::int32_t* taps = nullptr;    // of the max-pool
  std::array<float*, 3> deltas{};  // gradients with respect to values between units, each as large as the largest
  float* dlogits = nullptr;
  float* dfeatures = nullptr;

 private:
  class Parts;
  void lay_out(Purpose purpose, std::size_t rows, Parts& parts);
  void lay_out_training(std::size_t rows, Parts& parts);
  void lay_out_inference(std::size_t rows, Parts& parts);

  Architecture architecture_;
  std::vector<bool> is_shortcut_;
  std::size_t largest_elements_;  // of any unit's output, per row
  CpuBuffer<float> values_;
  CpuBuffer<std::int32_t> taps_;
};

}  // namespace resnet

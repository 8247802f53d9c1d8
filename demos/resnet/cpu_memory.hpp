#pragma once

// Where the values of a pass through the network lie: one piece of memory, laid out anew for the pass and its rows.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "demos/resnet/architecture.hpp"
#include "demos/resnet/cpu_buffer.hpp"

namespace resnet {

/// What training keeps for its way back, inference writes over.
enum class Purpose { kTraining, kInference };

class CpuMemory {
 public:
  /// A unit's convolution, and what becomes of it: normalised, with ReLU where there is one. In inference both are the same
  /// memory.
  struct Unit {
    float* convolved;
    float* output;
  };

  explicit CpuMemory(const Architecture& architecture);

  /// Lays out, and grows where it must. Throws too_many_rows where memory does not do.
  void reserve(Purpose purpose, std::size_t rows);

  std::vector<Unit> units;
  float* pooled = nullptr;
  float* features = nullptr;
  // Of training only:
  std::int32_t* taps = nullptr;    // of the max-pool
  std::array<float*, 3> deltas{};  // gradients of the loss by what lies between units, each as large as any
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

#pragma once

// Choices about arithmetic that the user makes and a device follows.

namespace resnet {

/// Of activations and of products; parameters, gradients and statistics are float32 in any case.
enum class Precision {
  kFloat32,
  kTf32,      // products rounded to TF32; CUDA devices only
  kBfloat16,  // CUDA devices only
};

/// Whose rows batch normalisation normalises by.
enum class Normalization {
  kPerDevice,     // each device's own
  kSynchronized,  // those of all devices
};

}  // namespace resnet

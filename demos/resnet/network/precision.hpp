#pragma once

// The user's choices about arithmetic.

namespace resnet {

/// The precision of activations and of products. Parameters, gradients and statistics are always float32.
enum class Precision {
  kFloat32,
  kTf32,      // products rounded to TF32; CUDA devices only
  kBfloat16,  // CUDA devices only
};

/// The rows by which batch normalisation normalises.
enum class Normalization {
  kPerDevice,     // each device's own rows
  kSynchronized,  // the rows of all devices
};

}  // namespace resnet

#pragma once

// From stored images to what the network sees: a crop, perhaps mirrored, normalised. CPU and CUDA devices draw the same.

#include <cstddef>
#include <cstdint>
#include <span>

namespace resnet {

/// Images as they are stored: uint8 [rows, height, width, 3].
struct ImageShape {
  std::size_t height;
  std::size_t width;
  std::size_t elements() const { return height * width * 3; }
};

/// How images become input.
struct Preparation {
  std::size_t crop;            // height and width of the input, at most those of the images
  float mean[3];               // of pixels from 0 to 1, by channel: subtracted
  float inverse_deviation[3];  // then multiplied by
};

/// What a step's crops and mirrorings are drawn from, besides the rows: the same for all workers of a step.
struct AugmentKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  bool is_random = false;  // else the crop is from the middle and nothing is mirrored
  bool mirrors = true;     // left and right may be exchanged, one time in two
};

/// Where a row's crop begins, and whether it is mirrored.
struct Placement {
  std::size_t top;
  std::size_t left;
  bool is_mirrored;
};

}  // namespace resnet

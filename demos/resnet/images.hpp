#pragma once

// From stored images to what the network sees: a crop, perhaps mirrored, normalised. CPU and CUDA devices draw the same.

#include <cstddef>
#include <cstdint>
#include <span>

#include "demos/common/philox.hpp"

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
  friend constexpr bool operator==(const Placement&, const Placement&) = default;
};

/// Preparation by the mean and the deviation of ImageNet's pixels, as torchvision's reference training has them.
constexpr Preparation imagenet_preparation(std::size_t crop) {
  return {.crop = crop, .mean = {0.485F, 0.456F, 0.406F}, .inverse_deviation = {1 / 0.229F, 1 / 0.224F, 1 / 0.225F}};
}

/// Tells these draws apart from others with the same seed.
inline constexpr std::uint32_t kPlacementDraws = 0x63726F70;

/// A uniform whole number below `count` from a uniform word. Source: D. Lemire, "Fast Random Integer Generation in an
/// Interval", ACM TOMACS 29 (2019), the product without rejection: some numbers are likelier by count / 2^32 at most.
constexpr std::size_t uniform_below(std::uint32_t word, std::size_t count) {
  return static_cast<std::size_t>((std::uint64_t{word} * count) >> 32);
}

/// The crop of row `row_id` of the data set in a step: a pure function of its arguments, so that it is the same whatever
/// worker has the row. On any device; images are not smaller than the crop.
constexpr Placement placement(const ImageShape& shape, const Preparation& preparation, const AugmentKey& key,
                              std::int64_t row_id) {
  const std::size_t free_rows = shape.height - preparation.crop;
  const std::size_t free_columns = shape.width - preparation.crop;
  if (!key.is_random) return {free_rows / 2, free_columns / 2, false};
  const auto row = static_cast<std::uint64_t>(row_id);
  const demos::PhiloxCounter counter{key.step, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32),
                                     kPlacementDraws};
  const demos::PhiloxCounter words = demos::philox4x32_10(counter, key.seed);
  return {uniform_below(words[0], free_rows + 1), uniform_below(words[1], free_columns + 1),
          key.mirrors && words[2] >> 31 != 0};
}

/// A stored pixel of a channel as input. On any device.
constexpr float prepared_pixel(const Preparation& preparation, std::uint8_t pixel, std::size_t channel) {
  return (static_cast<float>(pixel) / 255.0F - preparation.mean[channel]) * preparation.inverse_deviation[channel];
}

/// Throws std::invalid_argument unless a crop of that size can be taken out of the images.
void check_crop(const ImageShape& shape, std::size_t crop);

/// What images are stored as to what the network sees, on a CPU: uint8 [rows, height, width, 3] to float32 [rows, crop,
/// crop, 3]. `row_ids` are those of the rows in the data set; where the key is not random there may be none. Throws
/// std::invalid_argument where lengths do not fit together, or images are smaller than the crop.
void prepare_images(const ImageShape& shape, const Preparation& preparation, const AugmentKey& key,
                    std::span<const std::uint8_t> images, std::span<const std::int64_t> row_ids,
                    std::span<float> prepared);

}  // namespace resnet

#pragma once

// Turns stored images into the input of the network: takes a crop, may mirror it, and normalises it. CPU and CUDA
// devices make the same random draws.

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

/// Says how images become input.
struct Preparation {
  std::size_t crop;            // height and width of the input, at most those of the images
  float mean[3];               // by channel, of pixels from 0 to 1; subtracted from the pixels
  float inverse_deviation[3];  // by channel; the pixels are then multiplied by it
};

/// Determines the crops and mirrorings of a step, together with the rows. All workers use the same key in a step.
struct AugmentKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  bool is_random = false;  // if false, the crop is from the middle and nothing is mirrored
  bool mirrors = true;     // exchange left and right with probability 1/2
};

/// The place where the crop of a row begins, and whether the crop is mirrored.
struct Placement {
  std::size_t top;
  std::size_t left;
  bool is_mirrored;
  friend constexpr bool operator==(const Placement&, const Placement&) = default;
};

/// Preparation by the mean and the deviation of ImageNet's pixels, with the values of torchvision's reference training.
constexpr Preparation imagenet_preparation(std::size_t crop) {
  return {.crop = crop, .mean = {0.485F, 0.456F, 0.406F}, .inverse_deviation = {1 / 0.229F, 1 / 0.224F, 1 / 0.225F}};
}

/// Separates these draws from other draws with the same seed.
inline constexpr std::uint32_t kPlacementDraws = 0x63726F70;

/// Makes a uniform whole number below `count` from a uniform word. Source: D. Lemire, "Fast Random Integer Generation
/// in an Interval", ACM TOMACS 29 (2019), the product without rejection. Without rejection, some numbers are more
/// likely than others, by at most count / 2^32.
constexpr std::size_t uniform_below(std::uint32_t word, std::size_t count) {
  return static_cast<std::size_t>((std::uint64_t{word} * count) >> 32);
}

/// The crop of row `row_id` of the data set in a step. It is a pure function of its arguments, so it does not depend on
/// which worker has the row. Images must not be smaller than the crop. Can be called on any device.
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

/// Turns a stored pixel of a channel into input. Can be called on any device.
constexpr float prepared_pixel(const Preparation& preparation, std::uint8_t pixel, std::size_t channel) {
  return (static_cast<float>(pixel) / 255.0F - preparation.mean[channel]) * preparation.inverse_deviation[channel];
}

/// Throws std::invalid_argument unless the images are large enough for a crop of this size.
void check_crop(const ImageShape& shape, std::size_t crop);

/// Turns stored images, uint8 [rows, height, width, 3], into the input of the network, float32 [rows, crop, crop, 3],
/// on a CPU. `row_ids` are the numbers of the rows in the data set. They may be empty if the key is not random. Throws
/// std::invalid_argument if the lengths do not fit together, or if the images are smaller than the crop.
void prepare_images(const ImageShape& shape, const Preparation& preparation, const AugmentKey& key,
                    std::span<const std::uint8_t> images, std::span<const std::int64_t> row_ids,
                    std::span<float> prepared);

}  // namespace resnet

#include "demos/resnet/network/images.hpp"

#include <array>
#include <stdexcept>
#include <string>

namespace resnet {
namespace {

constexpr std::size_t kChannels = 3;

/// For each channel, the input values of all 256 values that a stored pixel can have.
using PixelTable = std::array<std::array<float, 256>, kChannels>;

PixelTable pixel_table(const Preparation& preparation) {
  PixelTable table{};
  for (std::size_t channel = 0; channel < kChannels; ++channel) {
    for (std::size_t pixel = 0; pixel < 256; ++pixel) {
      table[channel][pixel] = prepared_pixel(preparation, static_cast<std::uint8_t>(pixel), channel);
    }
  }
  return table;
}

[[noreturn]] void fail(const std::string& expected, const std::string& got) {
  throw std::invalid_argument("prepare_images: expected " + expected + ", got " + got);
}

/// Checks that the lengths fit together. Returns the number of rows.
std::size_t check(const ImageShape& shape, std::size_t crop, bool is_random, std::size_t images, std::size_t row_ids,
                  std::size_t prepared) {
  check_crop(shape, crop);
  const std::size_t rows = images / shape.elements();
  if (images != rows * shape.elements()) fail("whole images", std::to_string(images) + " elements");
  if (prepared != rows * crop * crop * kChannels) {
    fail("room for " + std::to_string(rows * crop * crop * kChannels) + " elements", std::to_string(prepared));
  }
  if (row_ids != rows && (is_random || row_ids != 0)) {
    fail(std::to_string(rows) + " row ids", std::to_string(row_ids));
  }
  return rows;
}

/// Prepares one image: reads `image`, writes `prepared`.
void prepare(const ImageShape& shape, std::size_t crop, const PixelTable& table, const Placement& place,
             const std::uint8_t* image, float* prepared) {
  for (std::size_t y = 0; y < crop; ++y) {
    const std::uint8_t* line = image + ((place.top + y) * shape.width + place.left) * kChannels;
    for (std::size_t x = 0; x < crop; ++x) {
      const std::uint8_t* pixel = line + (place.is_mirrored ? crop - 1 - x : x) * kChannels;
      for (std::size_t channel = 0; channel < kChannels; ++channel) *prepared++ = table[channel][pixel[channel]];
    }
  }
}

}  // namespace

void check_crop(const ImageShape& shape, std::size_t crop) {
  if (crop == 0 || crop > shape.height || crop > shape.width) {
    fail("images not smaller than the crop, " + std::to_string(crop) + " x " + std::to_string(crop),
         std::to_string(shape.height) + " x " + std::to_string(shape.width));
  }
}

void prepare_images(const ImageShape& shape, const Preparation& preparation, const AugmentKey& key,
                    std::span<const std::uint8_t> images, std::span<const std::int64_t> row_ids,
                    std::span<float> prepared) {
  const std::size_t crop = preparation.crop;
  const std::size_t rows = check(shape, crop, key.is_random, images.size(), row_ids.size(), prepared.size());
  const PixelTable table = pixel_table(preparation);
  for (std::size_t row = 0; row < rows; ++row) {
    const Placement place = placement(shape, preparation, key, row_ids.empty() ? 0 : row_ids[row]);
    prepare(shape, crop, table, place, &images[row * shape.elements()], &prepared[row * crop * crop * kChannels]);
  }
}

}  // namespace resnet

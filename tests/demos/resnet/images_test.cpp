#include "demos/resnet/network/images.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace resnet {
namespace {

constexpr ImageShape kImageShape{40, 36};
constexpr Preparation kAsStored{.crop = 32, .mean = {0, 0, 0}, .inverse_deviation = {255, 255, 255}};

TEST(Placement, IsAPureFunctionOfSeedStepAndRowAndInTheMiddleWhereItIsNotRandom) {
  static_assert(placement(kImageShape, kAsStored, {.seed = 3, .step = 4, .is_random = false}, 5) ==
                Placement{4, 2, false});
  const AugmentKey key{.seed = 3, .step = 4, .is_random = true};
  const Placement here = placement(kImageShape, kAsStored, key, 5);
  EXPECT_EQ(placement(kImageShape, kAsStored, key, 5), here);
  // Each of these 40 placements has a chance of one in 90 to be the same. Fewer than five of them are the same.
  int same = 0;
  for (std::uint32_t other = 0; other < 10; ++other) {
    same += placement(kImageShape, kAsStored, {.seed = 10 + other, .step = 4, .is_random = true}, 5) == here;
    same += placement(kImageShape, kAsStored, {.seed = 3, .step = 10 + other, .is_random = true}, 5) == here;
    same += placement(kImageShape, kAsStored, key, 10 + other) == here;
    same += placement(kImageShape, kAsStored, key, 5 + (std::int64_t{other + 1} << 32)) == here;
  }
  EXPECT_LT(same, 5);
}

TEST(Placement, TakesEveryPlaceAboutEquallyOften) {
  constexpr int kRows = 9000;
  int mirrored = 0;
  std::vector<int> tops(9);
  std::vector<int> lefts(5);
  for (int row = 0; row < kRows; ++row) {
    const Placement place = placement(kImageShape, kAsStored, {.seed = 1, .step = 1, .is_random = true}, row);
    ++tops.at(place.top);
    ++lefts.at(place.left);
    mirrored += place.is_mirrored;
    const AugmentKey unmirrored{.seed = 1, .step = 1, .is_random = true, .mirrors = false};
    EXPECT_FALSE(placement(kImageShape, kAsStored, unmirrored, row).is_mirrored);
  }
  for (const int count : tops) EXPECT_NEAR(count, kRows / 9, 150);  // the standard deviation is about 30
  for (const int count : lefts) EXPECT_NEAR(count, kRows / 5, 200);
  EXPECT_NEAR(mirrored, kRows / 2, 250);
}

/// Two images. Byte i of the array is i modulo 251.
std::vector<std::uint8_t> numbered_images() {
  std::vector<std::uint8_t> images(2 * kImageShape.elements());
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i % 251);
  return images;
}

TEST(PrepareImages, GivesThePixelsOfThePlacement) {
  const std::vector<std::uint8_t> images = numbered_images();
  const AugmentKey key{.seed = 1, .step = 2, .is_random = true};
  std::vector<std::int64_t> row_ids{0, 1};  // one row that is mirrored, and one that is not
  const auto is_mirrored = [&](std::int64_t id) { return placement(kImageShape, kAsStored, key, id).is_mirrored; };
  while (is_mirrored(row_ids[0])) ++row_ids[0];
  while (!is_mirrored(row_ids[1])) ++row_ids[1];
  std::vector<float> prepared(2 * 32 * 32 * 3);
  prepare_images(kImageShape, kAsStored, key, images, row_ids, prepared);
  for (std::size_t row = 0; row < 2; ++row) {
    const Placement place = placement(kImageShape, kAsStored, key, row_ids[row]);
    for (std::size_t y = 0; y < 32; ++y) {
      for (std::size_t x = 0; x < 32; ++x) {
        for (std::size_t channel = 0; channel < 3; ++channel) {
          const std::size_t column = place.left + (row == 1 ? 31 - x : x);
          const std::size_t from = ((row * 40 + place.top + y) * 36 + column) * 3 + channel;
          ASSERT_NEAR(prepared[((row * 32 + y) * 32 + x) * 3 + channel], images[from], 1e-3)
              << row << y << x << channel;
        }
      }
    }
  }
}

TEST(PrepareImages, SubtractsTheMeanAndDividesByTheDeviationOfTheChannel) {
  const ImageShape shape{32, 32};
  const std::vector<std::uint8_t> images(shape.elements(), 51);
  std::vector<float> prepared(images.size());
  prepare_images(shape, imagenet_preparation(32), {}, images, {}, prepared);
  EXPECT_NEAR(prepared[0], (0.2 - 0.485) / 0.229, 1e-6);
  EXPECT_NEAR(prepared[1], (0.2 - 0.456) / 0.224, 1e-6);
  EXPECT_NEAR(prepared[2], (0.2 - 0.406) / 0.225, 1e-6);
}

TEST(PrepareImages, RefusesWhatDoesNotFitTogether) {
  const std::vector<std::uint8_t> images = numbered_images();
  std::vector<float> prepared(2 * 32 * 32 * 3);
  const std::vector<std::int64_t> ids{1, 2};
  const std::span<const std::uint8_t> pixels = images;
  const AugmentKey random{.is_random = true};
  EXPECT_NO_THROW(prepare_images(kImageShape, kAsStored, random, pixels, ids, prepared));
  EXPECT_NO_THROW(prepare_images(kImageShape, kAsStored, random, {}, {}, {}));
  EXPECT_THROW(prepare_images(kImageShape, kAsStored, random, pixels, {}, prepared), std::invalid_argument);
  EXPECT_THROW(prepare_images(kImageShape, kAsStored, random, pixels.first(5), ids, prepared), std::invalid_argument);
  EXPECT_THROW(prepare_images(kImageShape, kAsStored, random, pixels, ids, std::span(prepared).first(7)),
               std::invalid_argument);
  EXPECT_THROW(prepare_images({40, 31}, kAsStored, random, pixels, ids, prepared), std::invalid_argument);
}

}  // namespace
}  // namespace resnet

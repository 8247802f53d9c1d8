#include "syncrun/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using syncrun::bfloat16;
using syncrun::float16;

TEST(Float16, ComesBackExactlyFromEveryBitPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = float16::from_bits(static_cast<std::uint16_t>(bits));
    const float wide = value;
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(float16(wide))));
    } else {
      ASSERT_EQ(float16(wide).bits(), bits);
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(float16(1.0F).bits(), 0x3c00);
  EXPECT_EQ(float16(65504.0F).bits(), 0x7bff);
  EXPECT_EQ(float16(65519.9F).bits(), 0x7bff);
  EXPECT_EQ(float16(65520.0F).bits(), 0x7c00) << "infinity";
  EXPECT_EQ(float16(0x1p-24F).bits(), 0x0001) << "smallest subnormal";
  EXPECT_EQ(float16(0x1p-25F).bits(), 0x0000) << "half of it: a tie, to even";
  EXPECT_EQ(float16(0x1.8p-24F).bits(), 0x0002) << "a tie, to even";
  EXPECT_EQ(float16(1.0F + 0x1p-11F).bits(), 0x3c00) << "a tie, to even";
  EXPECT_EQ(float16(1.0F + 0x1.8p-10F).bits(), 0x3c02) << "a tie, to even";
  EXPECT_EQ(float16(-2.0F).bits(), 0xc000);
}

TEST(Bfloat16, IsTheRoundedUpperHalf) {
  EXPECT_EQ(bfloat16(1.0F).bits(), 0x3f80);
  EXPECT_EQ(bfloat16(1.0F + 0x1p-8F).bits(), 0x3f80) << "a tie, to even";
  EXPECT_EQ(bfloat16(1.0F + 0x1.8p-7F).bits(), 0x3f82) << "a tie, to even";
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(static_cast<float>(bfloat16(std::numeric_limits<float>::max()))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = bfloat16::from_bits(static_cast<std::uint16_t>(bits));
    if (std::isnan(wide)) continue;
    ASSERT_EQ(bfloat16(wide).bits(), bits);
  }
}

}  // namespace

#include "common/arrays/reduce.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace {

using namespace syncrun;
using namespace syncrun::detail;

TEST(Reduce, CombinesInOrderIntoEveryDestination) {
  std::vector<float> a(3000, 1.0F);
  std::vector<float> b(3000, 1e8F);
  std::vector<float> c(3000, -1e8F);
  const std::array<const void*, 3> sources{a.data(), b.data(), c.data()};
  const std::array<void*, 3> destinations{a.data(), b.data(), c.data()};
  arrays::reduce_elements(DType::float32, Reduction::sum, destinations, sources, {}, a.size());
  const float in_order = (1.0F + 1e8F) + -1e8F;
  for (const auto* array : {&a, &b, &c}) {
    for (const float value : *array) ASSERT_EQ(value, in_order);
  }
}

/// Reduces the largest value and 1. A signed type of the same size would order them the other way round.
template <class T>
void expect_unsigned(DType dtype) {
  const auto reduced = [&](Reduction reduction) {
    const T most = std::numeric_limits<T>::max();
    const T one = 1;
    T result = 0;
    const std::array<const void*, 2> sources{&most, &one};
    void* destination = &result;
    arrays::reduce_elements(dtype, reduction, {&destination, 1}, sources, {}, 1);
    return result;
  };
  EXPECT_EQ(reduced(Reduction::max), std::numeric_limits<T>::max()) << to_string(dtype);
  EXPECT_EQ(reduced(Reduction::min), 1) << to_string(dtype);
  EXPECT_EQ(reduced(Reduction::sum), 0) << to_string(dtype) << " wraps around";
  EXPECT_EQ(reduced(Reduction::prod), std::numeric_limits<T>::max()) << to_string(dtype);
}

TEST(Reduce, TakesUnsignedIntegersForWhatTheyAre) {
  expect_unsigned<std::uint8_t>(DType::uint8);
  expect_unsigned<std::uint16_t>(DType::uint16);
  expect_unsigned<std::uint32_t>(DType::uint32);
  expect_unsigned<std::uint64_t>(DType::uint64);
}

TEST(Reduce, KnowsWhichTypesHaveWhichOperations) {
  EXPECT_TRUE(arrays::can_reduce(DType::float16, Reduction::avg));
  EXPECT_FALSE(arrays::can_reduce(DType::int32, Reduction::avg));
  EXPECT_TRUE(arrays::can_reduce(DType::uint8, Reduction::prod));
  EXPECT_TRUE(arrays::can_reduce(DType::uint64, Reduction::min));
  EXPECT_FALSE(arrays::can_reduce(DType::uint32, Reduction::avg));
  EXPECT_FALSE(arrays::can_reduce(DType::boolean, Reduction::sum));
  EXPECT_TRUE(arrays::can_reduce_by_nccl(DType::uint32, Reduction::max));
  EXPECT_FALSE(arrays::can_reduce_by_nccl(DType::uint16, Reduction::max)) << "which NCCL lacks";
  EXPECT_FALSE(arrays::can_reduce(DType::float32, Reduction::gather));
}

}  // namespace

#include "common/arrays/reduce.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
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
  reduce_elements(DType::float32, Reduction::sum, destinations, sources, {}, a.size());
  const float in_order = (1.0F + 1e8F) + -1e8F;
  for (const auto* array : {&a, &b, &c}) {
    for (const float value : *array) ASSERT_EQ(value, in_order);
  }
}

TEST(Reduce, GivesTheSameBitsForAnyDivisionOfTheElements) {
  std::vector<float> a(5000);
  std::vector<float> b(5000);
  std::vector<float> c(5000);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = std::sin(static_cast<float>(i));
    b[i] = std::cos(static_cast<float>(i));
    c[i] = std::tan(static_cast<float>(i));
  }
  const std::array<double, 3> weights{0.25, 0.5, 0.25};
  std::vector<float> whole(a.size());
  std::vector<float> parts(a.size());
  const auto reduce = [&](std::vector<float>& to, std::size_t begin, std::size_t end) {
    const std::array<const void*, 3> sources{&a[begin], &b[begin], &c[begin]};
    void* destination = &to[begin];
    reduce_elements(DType::float32, Reduction::avg, {&destination, 1}, sources, weights, end - begin);
  };
  reduce(whole, 0, whole.size());
  reduce(parts, 0, 17);
  reduce(parts, 17, 1041);
  reduce(parts, 1041, parts.size());
  EXPECT_EQ(whole, parts);
}

TEST(Reduce, WrapsIntegersAround) {
  std::array<std::int8_t, 1> a{100};
  std::array<std::int8_t, 1> b{100};
  const std::array<const void*, 2> sources{a.data(), b.data()};
  void* destination = a.data();
  reduce_elements(DType::int8, Reduction::sum, {&destination, 1}, sources, {}, 1);
  EXPECT_EQ(a[0], -56);
}

template <class T>
T reduced_pair(Reduction reduction, T a, T b) {
  const std::array<const void*, 2> sources{&a, &b};
  void* destination = &a;
  reduce_elements(dtype_of<T>, reduction, {&destination, 1}, sources, {}, 1);
  return a;
}

template <class T>
void expect_nan_to_last() {
  const T nan(std::numeric_limits<float>::quiet_NaN());
  const T infinity(std::numeric_limits<float>::infinity());
  for (const Reduction reduction : {Reduction::min, Reduction::max}) {
    for (const T other : {T(1.0F), infinity, T(-static_cast<float>(infinity)), nan}) {
      for (const T result : {reduced_pair(reduction, nan, other), reduced_pair(reduction, other, nan)}) {
        EXPECT_TRUE(std::isnan(static_cast<float>(result))) << to_string(dtype_of<T>) << ' ' << to_string(reduction);
      }
    }
    EXPECT_FALSE(std::signbit(static_cast<float>(reduced_pair(reduction, T(0.0F), T(-0.0F)))))
        << "the first zero stays";
    EXPECT_TRUE(std::signbit(static_cast<float>(reduced_pair(reduction, T(-0.0F), T(0.0F)))));
  }
  EXPECT_EQ(static_cast<float>(reduced_pair(Reduction::min, T(2.0F), T(-3.0F))), -3);
  EXPECT_EQ(static_cast<float>(reduced_pair(Reduction::max, T(2.0F), T(-3.0F))), 2);
}

TEST(Reduce, GivesNanAsMinimumAndMaximumIfAValueIsNan) {
  expect_nan_to_last<float16>();
  expect_nan_to_last<bfloat16>();
  expect_nan_to_last<float>();
  expect_nan_to_last<double>();
}

/// Adds 1 to 256 many times. In 16 bits, some of these sums would stay what they are.
template <class T>
void expect_partial_results_in_float() {
  constexpr std::size_t kElements = 1500;  // more than are combined at a time
  constexpr int kSlices = 3000;
  std::vector<float> total(kElements);
  const std::vector<T> first(kElements, T(256.0F));
  const std::vector<T> one(kElements, T(1.0F));
  std::vector<T> result(kElements);
  convert_elements({dtype_of<T>, DType::float32}, first.data(), total.data(), kElements);
  for (int slice = 0; slice < kSlices; ++slice)
    accumulate_elements(dtype_of<T>, Reduction::sum, total.data(), one.data(), {}, kElements);
  convert_elements({DType::float32, dtype_of<T>}, total.data(), result.data(), kElements);
  for (const T value : result) ASSERT_EQ(static_cast<float>(value), static_cast<float>(T(256.0F + kSlices)));
}

TEST(Reduce, KeepsPartialResultsOf16BitsInFloat) {
  EXPECT_EQ(partial_type(DType::float16), DType::float32);
  EXPECT_EQ(partial_type(DType::bfloat16), DType::float32);
  EXPECT_EQ(partial_type(DType::float64), DType::float64);
  EXPECT_EQ(partial_type(DType::int16), DType::int16);
  expect_partial_results_in_float<float16>();
  expect_partial_results_in_float<bfloat16>();
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
    reduce_elements(dtype, reduction, {&destination, 1}, sources, {}, 1);
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
  EXPECT_TRUE(can_reduce(DType::float16, Reduction::avg));
  EXPECT_FALSE(can_reduce(DType::int32, Reduction::avg));
  EXPECT_TRUE(can_reduce(DType::uint8, Reduction::prod));
  EXPECT_TRUE(can_reduce(DType::uint64, Reduction::min));
  EXPECT_FALSE(can_reduce(DType::uint32, Reduction::avg));
  EXPECT_FALSE(can_reduce(DType::boolean, Reduction::sum));
  EXPECT_TRUE(can_reduce_by_nccl(DType::uint32, Reduction::max));
  EXPECT_FALSE(can_reduce_by_nccl(DType::uint16, Reduction::max)) << "which NCCL lacks";
  EXPECT_FALSE(can_reduce(DType::float32, Reduction::gather));
}

}  // namespace

// Conversion of the master's arrays to the element types that functions require.

#include <cmath>
#include <limits>

#include "tests/support/on_workers.hpp"

namespace {

using syncrun::detail::is_lossless;

static_assert(is_lossless<int, double>() && is_lossless<std::int16_t, float>() && is_lossless<float, double>());
static_assert(is_lossless<std::uint8_t, std::int16_t>() && is_lossless<std::int8_t, sr::float16>());
static_assert(is_lossless<std::uint8_t, sr::bfloat16>() && is_lossless<sr::bfloat16, float>());
static_assert(is_lossless<bool, std::uint8_t>() && is_lossless<unsigned, std::int64_t>());
static_assert(!is_lossless<int, float>() && !is_lossless<double, float>() && !is_lossless<std::int64_t, double>());
static_assert(is_lossless<std::uint32_t, std::uint64_t>() && !is_lossless<std::uint64_t, double>());
static_assert(!is_lossless<std::int8_t, std::uint8_t>() && !is_lossless<std::uint8_t, std::int8_t>());
static_assert(!is_lossless<sr::float16, sr::bfloat16>() && !is_lossless<sr::bfloat16, sr::float16>());
static_assert(!is_lossless<float, int>() && !is_lossless<int, bool>() && !is_lossless<unsigned, std::int32_t>());

TEST(Convert, IsSilentWhereNothingCanBeLost) {
  EXPECT_EQ(sr::convert<double>(std::vector<int>{1, -2}).to_vector(), (std::vector<double>{1, -2}));
  EXPECT_EQ(sr::convert<float>(std::vector<float>{0.1F}).to_vector(), (std::vector<float>{0.1F}));
  const std::array<bool, 2> flags{true, false};
  EXPECT_EQ(sr::convert<std::uint8_t>(flags).to_vector(), (std::vector<std::uint8_t>{1, 0}));
  const auto matrix = sr::convert<double>(sr::view_of(std::vector<int>{1, 2, 3, 4, 5, 6}, sr::Shape{2, 3}));
  EXPECT_EQ(matrix.shape(), (sr::Shape<2>{2, 3}));
  EXPECT_EQ(matrix(1, 2), 6);
}

TEST(Convert, LosesDigitsWhereItIsAskedTo) {
  EXPECT_EQ(sr::convert<float>(sr::lossy(std::vector{0.1})).to_vector(), std::vector{0.1F});
  EXPECT_EQ(sr::convert<int>(sr::lossy(std::vector{2.9, -2.9})).to_vector(), (std::vector{2, -2}));
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  EXPECT_EQ(sr::convert<double>(sr::lossy(std::vector{large}))[0], 0x1p53);
  EXPECT_EQ(static_cast<float>(sr::convert<sr::float16>(sr::lossy(std::vector{0.1F}))[0]), 0.0999755859375F);
}

template <class T, class U>
void expect_range(U last_inside, U first_outside) {
  EXPECT_NO_THROW(sr::convert<T>(sr::lossy(std::vector<U>{last_inside}))) << +last_inside;
  EXPECT_ERROR(sr::convert<T>(sr::lossy(std::vector<U>{0, first_outside})), sr::ErrorKind::usage,
               "at position 1 is out of the range of " + std::string(to_string(sr::dtype_of<T>)));
}

TEST(Convert, NeverLosesTheValueItself) {
  expect_range<std::uint8_t>(255, 256);
  expect_range<std::uint8_t>(0, -1);
  expect_range<std::int8_t>(-128, -129);
  expect_range<std::int8_t>(127.9, 128.0);
  expect_range<std::int8_t>(-128.9, -129.0);
  expect_range<std::int32_t>(2147483647.5, 2147483648.0);
  expect_range<std::int64_t>(-0x1p63, std::nextafter(-0x1p63, -1e30));
  expect_range<std::int64_t>(std::nextafter(0x1p63, 0.0), 0x1p63);
  expect_range<std::int64_t>(std::numeric_limits<std::uint64_t>::max() / 2, std::numeric_limits<std::uint64_t>::max());
  expect_range<std::uint16_t>(65535, 65536);
  expect_range<std::uint16_t>(-0.9, -1.0);
  expect_range<std::uint32_t>(4294967295.5, 4294967296.0);
  expect_range<std::uint64_t>(0, -1);
  expect_range<std::uint64_t>(std::nextafter(0x1p64, 0.0), 0x1p64);
  expect_range<float>(3e38, 3.5e38);
  expect_range<sr::float16>(65504, 65520);
  expect_range<bool>(1, 2);
  EXPECT_ERROR(sr::convert<int>(sr::lossy(std::vector{std::nan("")})), sr::ErrorKind::usage, "nan at position 0");
  EXPECT_TRUE(std::isnan(sr::convert<float>(sr::lossy(std::vector{std::nan("")}))[0])) << "floating types have NaN";
  EXPECT_TRUE(std::isinf(sr::convert<float>(sr::lossy(std::vector{HUGE_VAL}))[0]));
}

class InputsOn : public OnWorkers {};
INSTANTIATE_ON_WORKERS(InputsOn, 2);

sr::Sum<double> weighted(sr::Scattered<const float, 2> x, double factor, sr::Broadcast<const double, 1> weights,
                         sr::Scattered<const std::int64_t, 1> labels) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = 0; j < x.shape(1); ++j) sum += x(i, j) * weights[j] * static_cast<double>(labels[i]);
  }
  return factor * sum;
}

TEST_P(InputsOn, AreBuiltInTheTypesThatTheFunctionWants) {
  const auto f = session().function(weighted);
  const std::vector<std::uint8_t> pixels{1, 2, 3, 4, 5, 6};
  const std::array<int, 2> weights{10, 100};
  const std::vector<int> labels{1, 0, 2};
  const auto [x, w, y] = f.inputs(sr::view_of(pixels, sr::Shape{3, 2}), weights, labels);
  static_assert(std::is_same_v<std::remove_const_t<decltype(x)>, sr::Data<float, 2>>);
  static_assert(std::is_same_v<std::remove_const_t<decltype(w)>, sr::Data<double, 1>>);
  EXPECT_EQ(f(x, 2, w, y), 2 * (210 + 2 * 650));
  const auto [from_double, other, same] =
      f.inputs(sr::lossy(sr::view_of(std::vector<double>(6, 0.5), sr::Shape{3, 2})), weights, labels);
  EXPECT_EQ(from_double.view()(2, 1), 0.5F);
}

TEST_P(InputsOn, CanBeBuiltOneByOne) {
  const auto x = session().data_as<double>(std::vector<float>{1.5F}, "x");
  EXPECT_EQ(x.at(0), 1.5);
  EXPECT_EQ(x.name(), "x");
  const auto result = session().function([](sr::Scattered<const double, 1> rows) {
    return sr::Gather<float, 1>(std::vector<float>(static_cast<std::size_t>(rows.rows()), 2.0F), {rows.rows()});
  })(x);
  EXPECT_EQ(session().data_as<double>(result).at(0), 2) << "a result is an array of the host, too";
  EXPECT_ERROR(session().data_as<std::int8_t>(sr::lossy(std::vector{1, 1000})), sr::ErrorKind::usage,
               "value 1000 at position 1");
  EXPECT_EQ(session().data_as<float>(std::vector<float>{}).rows(), 0);
}

}  // namespace

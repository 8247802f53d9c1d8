// Results of many slices: sums of 16-bit types, and NaN. Each slice has one row at most. The tests compare with sums in
// double. They run on CPU devices, and on GPUs, which may be fake ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/mixed/mixed_bodies.hpp"

namespace mixed_test {
namespace {

/// The rows of a call: in the first column 256 and then ones. 16 bits are too few for 256 + 1 (bfloat16) or soon after it
/// (float16). In the last column, one row has NaN. The other columns are as the first one.
template <class T>
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t columns, std::int64_t row_of_nan) : shape_(rows, columns) {
    values_.assign(static_cast<std::size_t>(rows * columns), T(1.0F));
    std::fill_n(values_.begin(), columns, T(256.0F));
    values_[static_cast<std::size_t>(row_of_nan * columns + columns - 1)] = T(std::numeric_limits<float>::quiet_NaN());
  }
  const std::vector<T>& values() const { return values_; }
  const sr::Shape<2>& shape() const { return shape_; }
  double sum() const { return 255.0 + static_cast<double>(shape_[0]); }
  double mean() const { return sum() / static_cast<double>(shape_[0]); }

 private:
  sr::Shape<2> shape_;
  std::vector<T> values_;
};

/// Whether a value has been rounded twice at most: on its rank, and when the ranks were combined.
template <class T>
bool is_close(T got, double expected) {
  constexpr double kRounding = std::is_same_v<T, sr::bfloat16>  ? 0x1p-8
                               : std::is_same_v<T, sr::float16> ? 0x1p-11
                                                                : 0x1p-18;  // float32: averages over many slices
  return std::abs(static_cast<double>(static_cast<float>(got)) - expected) <= 2 * kRounding * std::abs(expected);
}

template <class T>
void expect_column(const T* got, std::int64_t columns, double expected, const char* what) {
  const auto wrong = std::find_if_not(got, got + columns - 1, [&](T value) { return is_close(value, expected); });
  EXPECT_EQ(wrong, got + columns - 1) << what << " of " << to_string(sr::dtype_of<T>) << ": "
                                      << static_cast<float>(*wrong) << ", expected " << expected;
  EXPECT_TRUE(std::isnan(static_cast<float>(got[columns - 1]))) << what << " of " << to_string(sr::dtype_of<T>);
}

class ResultsOfSlices : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto wanted = static_cast<int>(std::count(GetParam().begin(), GetParam().end(), 'a'));  // of "cuda"
    if (gpus() < wanted) GTEST_SKIP() << wanted << " GPUs wanted, " << gpus() << " present";
    sr::SessionOptions options;
    options.devices = GetParam();
    options.timeout = std::chrono::seconds(60);
    session_ = std::make_unique<sr::Session>(options);
  }
  void TearDown() override {
    if (session_) session_->close();
  }

  template <class T>
  void check(const Rows<T>& rows, std::int64_t slices) {
    const std::int64_t columns = rows.shape()[1];
    const auto x = session_->data(rows.values(), rows.shape());
    const auto f = session_->function(first_rows<sr::CpuWorker, T>, first_rows<sr::CudaWorker, T>);
    const auto r = f(x, {.slices = slices});
    expect_column(r.sum.data(), columns, rows.sum(), "sum");
    expect_column(r.avg.data(), columns, rows.mean(), "avg");
    expect_column(r.prod.data(), columns, 256, "prod");
    expect_column(r.min.data(), columns, rows.shape()[0] == 1 ? 256 : 1, "min");
    expect_column(r.max.data(), columns, 256, "max");
    for (const T value : {r.last_sum.value(), r.last_avg.value(), r.last_min.value(), r.last_max.value()})
      EXPECT_TRUE(std::isnan(static_cast<float>(value)));
  }
  template <class T>
  void check_numbers_and_updates(std::int64_t count) {
    Rows<T> rows(count, 2, 0);
    auto values = rows.values();
    values[1] = T(256.0F);  // no NaN
    const auto x = session_->data(values, rows.shape());
    const auto f = session_->function(first_rows<sr::CpuWorker, T>, first_rows<sr::CudaWorker, T>);
    const auto r = f(x, {.slices = count});
    EXPECT_TRUE(is_close(r.last_sum.value(), rows.sum()));
    EXPECT_TRUE(is_close(r.last_avg.value(), rows.mean()));
    EXPECT_EQ(static_cast<float>(r.last_min.value()), 1);
    EXPECT_EQ(static_cast<float>(r.last_max.value()), 256);
    const auto with_nan = session_->data(rows.values(), rows.shape());
    const auto update =
        session_->function(update_with_first_row<sr::CpuWorker, T>, update_with_first_row<sr::CudaWorker, T>);
    for (int rank = 0; rank < session_->world_size(); ++rank) {
      auto sum = session_->shared("sum", std::vector<T>(2));
      auto avg = session_->shared("avg", std::vector<T>(2));
      auto min = session_->shared("min", std::vector<T>(2));
      auto max = session_->shared("max", std::vector<T>(2));
      update.on_rank(rank)(with_nan, sum, avg, min, max, {.slices = count});
      expect_column(sum.get(rank).data(), 2, rows.sum(), "an update by sum");
      expect_column(avg.get(rank).data(), 2, rows.mean(), "an update by avg");
      expect_column(min.get(rank).data(), 2, 1, "an update by min");
      expect_column(max.get(rank).data(), 2, 256, "an update by max");
    }
  }
  template <class T>
  void check_type() {
    for (const std::int64_t row_of_nan : {0, 499, 999}) check(Rows<T>(1000, 20, row_of_nan), 1000);
    check(Rows<T>(50, 40'000, 7), 50);  // so large that the workers reduce them
    const auto ranks = static_cast<std::int64_t>(session_->world_size());
    check(Rows<T>(ranks, 40'000, ranks - 1), 1);
    check_numbers_and_updates<T>(600);
  }

  std::unique_ptr<sr::Session> session_;
};
INSTANTIATE_TEST_SUITE_P(Devices, ResultsOfSlices,
                         testing::Values("cpu0", "cpu0,cpu1,cpu2", "cuda0", "cuda0,cuda1", "cuda0,cpu0",
                                         "cpu0,cuda0,cpu1"),
                         [](const testing::TestParamInfo<std::string>& list) {
                           std::string name = list.param;
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

TEST_P(ResultsOfSlices, AreThoseOfDoubleForFloat16) { check_type<sr::float16>(); }
TEST_P(ResultsOfSlices, AreThoseOfDoubleForBfloat16) { check_type<sr::bfloat16>(); }
TEST_P(ResultsOfSlices, AreThoseOfDoubleForFloat32) { check_type<float>(); }
TEST_P(ResultsOfSlices, AreThoseOfDoubleForFloat64) { check_type<double>(); }

}  // namespace
}  // namespace mixed_test

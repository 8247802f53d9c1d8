// Sums and averages of 16 bits over many slices. The results are compared with what double gives, for any number of ranks
// and slices.

#include <cmath>

#include "tests/support/on_workers.hpp"

namespace {

constexpr std::int64_t kRows = 6000;
constexpr std::int64_t kSlices[] = {1, 7, 1000};

template <class T>
double number(T value) {
  return std::is_same_v<T, double> ? static_cast<double>(value) : static_cast<double>(static_cast<float>(value));
}

/// What two roundings of a value may change, one on the rank and one of the result. `digits` are those of the type.
template <class T>
double tolerance(double value) {
  constexpr int kDigits = std::is_same_v<T, sr::bfloat16>  ? 8
                          : std::is_same_v<T, sr::float16> ? 11
                          : std::is_same_v<T, float>       ? 17  // averages over 1,000 slices are rounded 1,000 times
                                                           : 46;
  return std::abs(value) * std::ldexp(1.0, 1 - kDigits);
}

// ---- sums and averages ------------------------------------------------------------------------------------------

template <class T>
struct Totals {
  sr::Sum<T> sum;
  sr::Avg<T> avg;
  sr::Sum<T, 1> sums;
  sr::Avg<T, 1> avgs;
};

double sum_of(const sr::Scattered<const float, 1>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0, [](double sum, float value) { return sum + double{value}; });
}

template <class T>
T rounded(double value) {
  if constexpr (std::is_same_v<T, double>) return value;
  else return T(static_cast<float>(value));
}

template <class T>
Totals<T> totals(sr::CpuWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size) {
  const T sum = rounded<T>(sum_of(x));
  const T avg = rounded<T>(sum_of(x) / static_cast<double>(x.rows()));
  Totals<T> own{.sum = sum, .avg = avg, .sums = {worker, {size}}, .avgs = {worker, {size}}};
  std::fill(own.sums.begin(), own.sums.end(), sum);
  std::fill(own.avgs.begin(), own.avgs.end(), avg);
  return own;
}

template <class T>
void update_totals(sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, T, 1> sum,
                   sr::Update<sr::op::avg, T, 1> avg) {
  sum.value()[0] = rounded<T>(sum_of(x));
  avg.value()[0] = rounded<T>(sum_of(x) / static_cast<double>(x.rows()));
}

class Combining : public OnWorkers {
 protected:
  template <class T>
  void check_totals() {
    std::vector<float> values(kRows, 1);
    std::fill_n(values.begin(), kRows / 2, 0.5F);
    constexpr double kSum = 0.75 * kRows;
    const auto x = session().data(values);
    const auto f = session().function(totals<T>);
    const auto update = session().function(update_totals<T>);
    for (const std::int64_t slices : kSlices) {
      for (const std::int64_t size : {std::int64_t{3}, std::int64_t{20'000}}) {  // the workers reduce the second one
        const auto r = f(x, size, {.slices = slices});
        EXPECT_NEAR(number(r.sum.value()), kSum, tolerance<T>(kSum)) << to_string(sr::dtype_of<T>) << ", " << slices;
        EXPECT_NEAR(number(r.avg.value()), 0.75, tolerance<T>(0.75)) << to_string(sr::dtype_of<T>) << ", " << slices;
        for (std::int64_t i = 0; i < size; ++i) {
          ASSERT_NEAR(number(r.sums[i]), kSum, tolerance<T>(kSum)) << to_string(sr::dtype_of<T>) << ", " << slices;
          ASSERT_NEAR(number(r.avgs[i]), 0.75, tolerance<T>(0.75)) << to_string(sr::dtype_of<T>) << ", " << slices;
        }
      }
      auto sum = session().shared("sum", std::vector<T>(1));
      auto avg = session().shared("avg", std::vector<T>(1));
      const int last = world_size() - 1;
      update.on_rank(last)(x, sum, avg, {.slices = slices});
      EXPECT_NEAR(number(sum.get(last)[0]), kSum, tolerance<T>(kSum)) << to_string(sr::dtype_of<T>) << ", " << slices;
      EXPECT_NEAR(number(avg.get(last)[0]), 0.75, tolerance<T>(0.75)) << to_string(sr::dtype_of<T>) << ", " << slices;
    }
  }
};
INSTANTIATE_ON_WORKERS(Combining, 1, 2, 3);

TEST_P(Combining, LosesNothingInSumsAndAverages) {
  check_totals<sr::float16>();
  check_totals<sr::bfloat16>();
  check_totals<float>();
  check_totals<double>();
}

}  // namespace

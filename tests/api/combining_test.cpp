// Values of ranks and slices that a careless combination gets wrong: numbers of 16 bits, and NaN. The results are compared
// with what double gives, for any number of ranks and slices.

#include <cmath>
#include <limits>

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
INSTANTIATE_ON_WORKERS(Combining, 1, 3);

TEST_P(Combining, LosesNothingInSumsAndAverages) {
  check_totals<sr::float16>();
  check_totals<sr::bfloat16>();
  check_totals<float>();
  check_totals<double>();
}

// ---- NaN --------------------------------------------------------------------------------------------------------

/// Minimum and maximum as NumPy computes them: NaN if one of the values is NaN.
template <class T>
T extreme(sr::Reduction reduction, const sr::Scattered<const T, 1>& x) {
  T result = x[0];
  for (const T value : x) {
    if (std::isnan(number(value))) return value;
    if (reduction == sr::Reduction::min ? number(value) < number(result) : number(value) > number(result))
      result = value;
  }
  return result;
}

template <class T>
struct Extremes {
  sr::Min<T> min;
  sr::Max<T> max;
  sr::Min<T, 1> mins;
  sr::Max<T, 1> maxs;
  sr::Sum<T> sum;
  sr::Avg<T> avg;
};

/// In the arrays, NaN is in the first element only. The others are from 0 to 11.
template <class T>
Extremes<T> extremes(sr::CpuWorker& worker, sr::Scattered<const T, 1> x, sr::Scattered<const T, 1> numbers,
                     std::int64_t size) {
  const T min = extreme(sr::Reduction::min, x);
  const T max = extreme(sr::Reduction::max, x);
  Extremes<T> own{.min = min, .max = max, .mins = {worker, {size}}, .maxs = {worker, {size}}, .sum = min, .avg = min};
  std::fill(own.mins.begin(), own.mins.end(), extreme(sr::Reduction::min, numbers));
  std::fill(own.maxs.begin(), own.maxs.end(), extreme(sr::Reduction::max, numbers));
  own.mins[0] = min;
  own.maxs[0] = max;
  return own;
}

template <class T>
void update_extremes(sr::Scattered<const T, 1> x, sr::Update<sr::op::min, T, 1> min,
                     sr::Update<sr::op::max, T, 1> max) {
  min.value()[0] = extreme(sr::Reduction::min, x);
  max.value()[0] = extreme(sr::Reduction::max, x);
}

/// Reduces in every way that a body can. Throws if a result is wrong. NaN comes from one rank, in element 0.
template <class T>
void reduce_extremes(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<T, 1> shared, int with_nan) {
  const auto expect = [](bool is_right, const char* what) {
    if (!is_right) throw std::runtime_error(what);
  };
  const T nan(std::numeric_limits<float>::quiet_NaN());
  const auto own = static_cast<T>(static_cast<float>(worker.rank() + 1));
  for (const auto reduction : {sr::Reduction::min, sr::Reduction::max}) {
    const double right = reduction == sr::Reduction::min ? 1 : comm.world_size();
    const auto fill = [&](std::span<T> values) {
      std::fill(values.begin(), values.end(), own);
      if (worker.rank() == with_nan) values[0] = nan;
    };
    const auto check = [&](std::span<const T> values, const char* what) {
      expect(std::isnan(number(values[0])), what);
      expect(std::all_of(values.begin() + 1, values.end(), [&](T value) { return number(value) == right; }), what);
    };
    expect(std::isnan(number(comm.all_reduce(worker.rank() == with_nan ? nan : own, reduction))), "a number");
    std::vector<T> memory(shared.span().size());
    for (const std::span<T> values : {shared.span(), std::span(memory), shared.span().first(8)}) {
      fill(values);
      comm.all_reduce(values, reduction);
      check(values, "all_reduce");
      fill(values);
      comm.reduce(values, reduction, 0);
      if (comm.rank() == 0) check(values, "reduce");
      fill(values);
      std::vector<T> part(static_cast<std::size_t>(comm.share(static_cast<std::int64_t>(values.size())).count));
      comm.reduce_scatter(values, part, reduction);
      if (comm.rank() == 0) check(part, "reduce_scatter");
      else expect(std::all_of(part.begin(), part.end(), [&](T value) { return number(value) == right; }), "a part");
    }
  }
}

class CombiningNan : public Combining {
 protected:
  template <class T>
  void check_outputs() {
    const auto f = session().function(extremes<T>);
    const auto update = session().function(update_extremes<T>);
    std::vector<T> numbers(12);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = T(static_cast<float>(i));
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      auto with_nan = numbers;
      with_nan[at] = T(std::numeric_limits<float>::quiet_NaN());
      const auto x = session().data(with_nan);
      for (const std::int64_t slices : {1, 4, 12}) {
        const std::int64_t size = at % 2 == 0 ? 3 : 20'000;
        const auto r = f(x, session().data(numbers), size, {.slices = slices});
        for (const T value : {r.min.value(), r.max.value(), r.mins[0], r.maxs[0], r.sum.value(), r.avg.value()}) {
          EXPECT_TRUE(std::isnan(number(value))) << to_string(sr::dtype_of<T>) << ", NaN in row " << at;
        }
        EXPECT_EQ(number(r.mins[size - 1]), 0);
        EXPECT_EQ(number(r.maxs[size - 1]), 11);
        auto min = session().shared("min", std::vector<T>(1));
        auto max = session().shared("max", std::vector<T>(1));
        update.on_rank(0)(x, min, max, {.slices = slices});
        EXPECT_TRUE(std::isnan(number(min.get(0)[0])));
        EXPECT_TRUE(std::isnan(number(max.get(0)[0])));
      }
    }
  }
  template <class T>
  void check_collectives() {
    auto v = session().shared<T, 1>("v");
    v.broadcast(std::vector<T>(100'001));
    const auto f = session().function(reduce_extremes<T>);
    for (int rank = 0; rank < world_size(); ++rank) {
      f(v, rank);
      for (const auto reduction : {sr::Reduction::min, sr::Reduction::max}) {
        v.broadcast(std::vector<T>(100'001, T(1.0F)));
        v.set(rank, std::vector<T>(100'001, T(std::numeric_limits<float>::quiet_NaN())));
        EXPECT_TRUE(std::isnan(number(v.reduce(reduction)[100'000])));
        v.all_reduce(reduction);
        EXPECT_TRUE(std::isnan(number(v.get(world_size() - 1)[0])));
      }
    }
  }
};
INSTANTIATE_ON_WORKERS(CombiningNan, 1, 3);

TEST_P(CombiningNan, GivesNanForAnyRanksAndSlices) {
  check_outputs<sr::float16>();
  check_outputs<sr::bfloat16>();
  check_outputs<float>();
  check_outputs<double>();
}

TEST_P(CombiningNan, GivesNanInEveryCollective) {
  check_collectives<sr::float16>();
  check_collectives<sr::bfloat16>();
  check_collectives<float>();
  check_collectives<double>();
}

}  // namespace

// NaN in collectives. Minimum and maximum are NaN if one of the values is. tests/mixed has the same of results, with
// numbers of 16 bits.

#include <cmath>
#include <limits>

#include "tests/support/on_workers.hpp"

namespace {

template <class T>
double number(T value) {
  return std::is_same_v<T, double> ? static_cast<double>(value) : static_cast<double>(static_cast<float>(value));
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

class CombiningNan : public OnWorkers {
 protected:
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

TEST_P(CombiningNan, GivesNanInEveryCollective) {
  check_collectives<sr::float16>();
  check_collectives<sr::bfloat16>();
  check_collectives<float>();
  check_collectives<double>();
}

}  // namespace

// The values that a call passes to the body, for each row of the table in syncrun/arguments.hpp.

#include <malloc.h>

#include "tests/support/on_workers.hpp"

namespace {

class Call : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Call, 1, 2, 3, 4, 7);

sr::Gather<float, 2> rows_as_they_come(sr::CpuWorker& worker, sr::Scattered<const float, 2> x) {
  sr::Gather<float, 2> out(worker, {x.rows(), x.shape(1)});
  std::copy(x.begin(), x.end(), out.begin());
  return out;
}

TEST_P(Call, GivesEveryRowToExactlyOneWorkerInRankOrder) {
  const auto values = counting<float>(33);
  const auto x = session().data(values, sr::Shape{11, 3});
  const auto all = session().function(rows_as_they_come)(x);
  EXPECT_EQ(all.shape(), (sr::Shape<2>{11, 3}));
  EXPECT_EQ(all.to_vector(), values);
}

sr::Gather<std::int64_t, 1> shares(sr::Scattered<const float, 1> x) {
  return {std::vector<std::int64_t>{x.rows(), x.first_row()}, {2}};
}

TEST_P(Call, SplitsRowsAsEvenlyAsPossible) {
  const auto x = session().data(counting<float>(23));
  const auto all = session().function(shares)(x);
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < all.size(); i += 2) {
    EXPECT_GE(all[i], 23 / world_size());
    EXPECT_LE(all[i], 23 / world_size() + 1);
    EXPECT_EQ(all[i + 1], next);
    next += all[i];
  }
  EXPECT_EQ(next, 23);
}

TEST_P(Call, GivesTheWholeOfABroadcastInputToEveryRank) {
  const auto y = session().data(counting<double>(1000));
  const auto sum = session().function([](sr::Broadcast<const double, 1> all) -> sr::Min<double> {
    return std::accumulate(all.begin(), all.end(), 0.0);
  });
  EXPECT_EQ(sum(y), 999 * 500.0);
}

struct Options {
  float rate;
  std::int64_t step;
};

TEST_P(Call, PassesValuesAndOnePerWorker) {
  const auto f = session().function(
      [](sr::CpuWorker& worker, Options options, sr::PerWorker<int> own, const double& factor) -> sr::Sum<double> {
        EXPECT_EQ(worker.world_size() > worker.rank(), true);
        return (static_cast<double>(options.rate) + static_cast<double>(options.step)) * own * factor;
      });
  std::vector<int> own(static_cast<std::size_t>(world_size()));
  std::iota(own.begin(), own.end(), 1);
  const int sum_of_own = world_size() * (world_size() + 1) / 2;
  const double expected = (0.5 + 3) * sum_of_own * 2.0;
  EXPECT_EQ(f({0.5F, 3}, own, 2.0), expected);
}

struct alignas(64) Wide {
  std::array<float, 16> values;
};

// Small values lie one after the other in a command, at multiples of 16 bytes.
TEST_P(Call, AlignsADeviceScalarAsItsType) {
  const auto f = session().function([](sr::DeviceScalar<float> a, sr::DeviceScalar<Wide> b, sr::DeviceScalar<float> c,
                                       sr::DeviceScalar<Wide> d) -> sr::Min<int> {
    const auto is_aligned = [](const Wide* wide) {
      return reinterpret_cast<std::uintptr_t>(wide) % alignof(Wide) == 0;
    };
    const bool is_right = *a.data() == 1 && b.data()->values[15] == 2 && *c.data() == 3 && d.data()->values[15] == 4;
    return is_right && is_aligned(b.data()) && is_aligned(d.data()) ? 1 : 0;
  });
  Wide b{};
  Wide d{};
  b.values[15] = 2;
  d.values[15] = 4;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f(1.0F, b, 3.0F, d), 1);
}

struct Large {
  std::array<std::int64_t, 1000> values;
};

TEST_P(Call, PassesValuesTooLargeForTheCommandItself) {
  const auto f = session().function([](Large large, sr::PerWorker<Large> own) -> sr::Sum<std::int64_t> {
    return large.values[999] + own.value().values[999];
  });
  Large large{};
  large.values[999] = 5;
  std::vector<Large> own(static_cast<std::size_t>(world_size()));
  for (auto& one : own) one.values[999] = 7;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(f(large, own), 12 * world_size());
}

TEST_P(Call, PicksRowsBySliceAndByIndexWithRepeats) {
  const auto x = session().data(counting<float>(20), sr::Shape{10, 2});
  const auto f = session().function(rows_as_they_come);
  EXPECT_EQ(f(x, {.batch = sr::Slice{2, 5}}).to_vector(), (std::vector<float>{4, 5, 6, 7, 8, 9}));
  const std::vector<std::uint16_t> picked{9, 0, 0, 3};
  EXPECT_EQ(f(x, {.batch = picked}).to_vector(), (std::vector<float>{18, 19, 0, 1, 0, 1, 6, 7}));
}

TEST_P(Call, GivesTheSameResultInSlices) {
  struct Results {
    sr::Sum<std::int64_t> sum;
    sr::Max<std::int64_t> max;
    sr::Avg<double, 1> mean;
    sr::Gather<std::int64_t, 1> all;
  };
  const auto f = session().function([](sr::CpuWorker& worker, sr::Scattered<const std::int64_t, 1> x) {
    Results r{.sum = 0, .max = 0, .mean = {worker, {1}}, .all = {x, {x.rows()}}};
    std::int64_t sum = 0;
    std::int64_t max = x[0];
    for (const auto v : x) {
      sum += v;
      max = std::max(max, v);
    }
    r.sum = sum;
    r.max = max;
    r.mean[0] = static_cast<double>(sum) / static_cast<double>(x.rows());
    return r;
  });
  const auto values = counting<std::int64_t>(29, 1);
  const auto x = session().data(values);
  for (const int slices : {1, 2, 5, 29}) {
    const auto r = f(x, {.slices = slices});
    EXPECT_EQ(r.sum, 29 * 15);
    EXPECT_EQ(r.max, 29);
    EXPECT_NEAR(r.mean[0], 15, 1e-12);
    EXPECT_EQ(r.all.to_vector(), values);
  }
}

TEST_P(Call, SkipsRanksWithoutRows) {
  const auto x = session().data(std::vector<float>{5, 7});
  const auto f = session().function([](sr::Scattered<const float, 1> x) -> sr::Prod<float> {
    if (x.rows() == 0) throw std::runtime_error("called without rows");
    float product = 1;
    for (const float v : x) product *= v;
    return product;
  });
  EXPECT_EQ(f(x), 35);
}

TEST_P(Call, ReturnsNothingWhereTheBodyDoes) {
  const auto f = session().function([](sr::Scattered<const float, 1>) {});
  f(session().data(std::vector<float>(3)));
}

TEST_P(Call, MakesFunctionsAtAnyTime) {
  for (int i = 0; i < 50; ++i) {
    const auto f = session().function([](int value) -> sr::Sum<int> { return value; });
    EXPECT_EQ(f(i), i * world_size());
  }
}

/// The bytes in use on the heap of each process. With a sanitizer, there is another heap, and this is 0.
sr::Gather<std::int64_t, 1> heap_bytes() { return {std::vector{static_cast<std::int64_t>(mallinfo2().uordblks)}, {1}}; }

TEST_P(Call, LeavesNothingOfFunctionsThatAreDropped) {
  const auto measure = session().function(heap_bytes);
  const auto make_functions = [&](int count) {
    for (int i = 0; i < count; ++i) session().function([](int value) -> sr::Sum<int> { return value; })(i);
    auto bytes = measure().to_vector();
    bytes.push_back(static_cast<std::int64_t>(mallinfo2().uordblks));
    return bytes;
  };
  const auto before = make_functions(200);
  const auto after = make_functions(2000);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_LT(after[i] - before[i], 8 * 2000) << "process " << i;
}

template <class T>
sr::Sum<T> typed(T value) {
  return value;
}

TEST_P(Call, FindsTemplatesByTheirInstance) {
  EXPECT_EQ(session().function(typed<int>)(2), 2 * world_size());
  EXPECT_EQ(session().function(typed<double>)(2.5), 2.5 * world_size());
}

TEST_P(Call, TakesNamesForMessages) { EXPECT_EQ(session().function(typed<int>, "the name").name(), "the name"); }

TEST_P(Call, GoesOnAfterManyCalls) {
  const auto f = session().function(typed<std::int64_t>);
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 2000; ++i) sum += f(i);
  EXPECT_EQ(sum, 1999 * 1000 * world_size());
}

}  // namespace

// The values that a call passes to the body, for each row of the table in syncrun/arguments.hpp.

#include <malloc.h>

#include "tests/support/on_workers.hpp"

namespace {

class Call : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Call, 1, 3);

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

}  // namespace

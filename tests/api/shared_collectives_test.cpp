// Collectives on shared variables that the master calls, for random shapes. The tests compare with results computed
// here.

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/api/element_types.hpp"
#include "tests/support/on_workers.hpp"

namespace {

class SharedCollectives : public OnWorkers {
 protected:
  std::int64_t some(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  /// Small numbers, so that sums of them are exact in any type and any order.
  template <class T>
  std::vector<T> some_values(std::int64_t count) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(T(static_cast<float>(some(1, 3))));
    return values;
  }
  template <class T>
  std::vector<std::vector<T>> set_all(sr::Shared<T, 1>& variable, std::int64_t size) {
    std::vector<std::vector<T>> copies;
    for (int rank = 0; rank < world_size(); ++rank) {
      copies.push_back(some_values<T>(size));
      variable.set(rank, copies.back());
    }
    return copies;
  }

 private:
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
};
INSTANTIATE_ON_WORKERS(SharedCollectives, 1, 3);

constexpr sr::Reduction kAllReductions[] = {sr::Reduction::avg, sr::Reduction::sum, sr::Reduction::min,
                                            sr::Reduction::max, sr::Reduction::prod};

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& copies, sr::Reduction reduction) {
  std::vector<T> result;
  for (std::size_t i = 0; i < copies.front().size(); ++i) {
    double value = static_cast<double>(copies.front()[i]);
    for (std::size_t rank = 1; rank < copies.size(); ++rank) {
      const auto other = static_cast<double>(copies[rank][i]);
      switch (reduction) {
        case sr::Reduction::min: value = std::min(value, other); break;
        case sr::Reduction::max: value = std::max(value, other); break;
        case sr::Reduction::prod: value *= other; break;
        default: value += other;
      }
    }
    if (reduction == sr::Reduction::avg) value /= static_cast<double>(copies.size());
    // Integers wrap around.
    if constexpr (std::is_integral_v<T>) result.push_back(static_cast<T>(static_cast<std::int64_t>(value)));
    else result.push_back(T(static_cast<float>(value)));
  }
  return result;
}

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& expected, sr::Reduction reduction) {
  ASSERT_EQ(got.size(), expected.size());
  const double tolerance = reduction == sr::Reduction::avg ? (sizeof(T) == 2 ? 2e-2 : 1e-6) : 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(expected[i]), tolerance)
        << to_string(sr::dtype_of<T>) << ' ' << to_string(reduction) << ", element " << i;
  }
}

/// Checks every reduction to the master, to all ranks, to one rank, and to shares.
template <class T, class Fixture>
void check_reductions(Fixture& test, sr::Session& session, std::int64_t size, sr::Route route) {
  const sr::CollectiveOptions options{.route = route};
  const int n = session.world_size();
  auto v = session.shared<T, 1>("v");
  for (const auto reduction : kAllReductions) {
    if (reduction == sr::Reduction::avg && !sr::FloatingElement<T>) continue;
    auto copies = test.template set_all_of<T>(v, size);
    const auto expected = reduced(copies, reduction);
    expect_near(v.reduce(reduction, options).to_vector(), expected, reduction);
    for (int rank = 0; rank < n; ++rank) EXPECT_TRUE(v.get(rank).to_vector() == copies[static_cast<std::size_t>(rank)]);

    v.all_reduce(reduction, options);
    for (int rank = 0; rank < n; ++rank) expect_near(v.get(rank).to_vector(), expected, reduction);

    copies = test.template set_all_of<T>(v, size);
    const int root = static_cast<int>(size % n);
    v.reduce(reduction, root, options);
    expect_near(v.get(root).to_vector(), reduced(copies, reduction), reduction);

    copies = test.template set_all_of<T>(v, size);
    v.reduce_scatter(reduction, options);
    std::int64_t least = size / n;
    for (const auto length : v.lengths()) EXPECT_TRUE(length == least || length == least + 1);
    expect_near(v.gather().to_vector(), reduced(copies, reduction), reduction);
  }
}

class SharedReductions : public SharedCollectives {
 public:
  template <class T>
  std::vector<std::vector<T>> set_all_of(sr::Shared<T, 1>& variable, std::int64_t size) {
    return set_all(variable, size);
  }
};
INSTANTIATE_ON_WORKERS(SharedReductions, 1, 3);

TEST_P(SharedReductions, GiveTheSameWhereverTheyGo) {
  for (const auto route : {sr::Route::device, sr::Route::host}) {
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, some(2, 100), some(1000, 9000)}) {
      check_reductions<float>(*this, session(), size, route);
    }
    for_arithmetic_types([&]<class T> { check_reductions<T>(*this, session(), some(1, 2000), route); });
  }
}

TEST_P(SharedCollectives, ScatterTakesABatch) {
  const std::int64_t rows = some(20, 60);
  const auto values = counting<float>(static_cast<std::size_t>(2 * rows));
  const auto data = session().data(values, sr::Shape{rows, 2});
  auto v = session().shared<float, 2>("v");
  const sr::Slice slice{some(0, 10), some(10, 20)};
  std::vector<int> list;
  for (int i = 0; i < 50; ++i) list.push_back(static_cast<int>(some(0, rows - 1)));
  const auto expect_rows = [&](const std::vector<int>& expected) {
    const auto all = v.gather();
    ASSERT_EQ(all.rows(), static_cast<std::int64_t>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(all(static_cast<std::int64_t>(i), 1), static_cast<float>(2 * expected[i] + 1));
    }
  };
  std::vector<int> sliced(static_cast<std::size_t>(slice.end - slice.begin));
  std::iota(sliced.begin(), sliced.end(), static_cast<int>(slice.begin));
  v.scatter(data, {.batch = slice});
  expect_rows(sliced);
  v.scatter(values, {rows, 2}, {.batch = slice});
  expect_rows(sliced);
  v.scatter(data, {.batch = list});
  expect_rows(list);
  v.scatter(values, {rows, 2}, {.batch = list});
  expect_rows(list);
  EXPECT_ERROR(v.scatter(data, {.batch = std::vector{0, 1, 99}}), sr::ErrorKind::usage,
               "scatter of 'v': batch has index 99 at position 2, but the array has rows 0 to");
  EXPECT_ERROR(v.scatter(data, {.batch = sr::Slice{0, rows + 1}}), sr::ErrorKind::usage, "scatter of 'v': batch is");
  expect_rows(list);
}

TEST_P(SharedCollectives, TakeSeveralVariablesInOneCall) {
  auto weights = session().shared<float, 2>("weights");
  auto bias = session().shared<double, 1>("bias");
  auto counts = session().shared<std::int16_t, 1>("counts");
  const auto fill = [&] {
    for (int rank = 0; rank < world_size(); ++rank) {
      weights.set(rank, std::vector<float>(6, static_cast<float>(rank + 1)), {2, 3});
      bias.set(rank, std::vector<double>(5000, rank + 1));
      counts.set(rank, std::vector<std::int16_t>{static_cast<std::int16_t>(rank + 1)});
    }
  };
  const int n = world_size();
  const int sum = n * (n + 1) / 2;
  for (const auto route : {sr::Route::device, sr::Route::host}) {
    const sr::CollectiveOptions options{.route = route};
    fill();
    session().all_reduce({weights, bias, counts}, sr::Reduction::sum, options);
    EXPECT_EQ(weights.get(n - 1)(1, 2), static_cast<float>(sum));
    EXPECT_EQ(bias.get(0)[4999], sum);
    EXPECT_EQ(counts.get(n - 1)[0], sum);
    session().all_reduce({"weights", bias}, sr::Reduction::avg, options);
    EXPECT_EQ(weights.get(0)(0, 0), static_cast<float>(sum));

    fill();
    const auto [w, b] = session().reduce(sr::Reduction::max, weights, bias);
    EXPECT_EQ(w(1, 2), static_cast<float>(n));
    EXPECT_EQ(b[4999], n);
    session().reduce({"bias", "counts"}, sr::Reduction::sum, n - 1, options);
    EXPECT_EQ(bias.get(n - 1)[0], sum);
    EXPECT_EQ(counts.get(n - 1)[0], sum);

    session().broadcast({weights, bias, counts}, n - 1, options);
    EXPECT_EQ(weights.get(0)(0, 0), static_cast<float>(n));
    EXPECT_EQ(counts.get(0)[0], sum);
    session().all_gather(std::vector<sr::AnyShared>{weights, counts}, options);
    EXPECT_EQ(weights.lengths(), std::vector<std::int64_t>(static_cast<std::size_t>(n), 2 * n));
    session().reduce_scatter({weights, bias}, sr::Reduction::sum, options);
    const auto [rows, all] = session().gather(weights, bias);
    EXPECT_EQ(rows.shape(), (sr::Shape<2>{2 * n, 3}));
    EXPECT_EQ(all.size(), 5000);
    EXPECT_EQ(rows(0, 0), static_cast<float>(n * n));
  }
}

TEST_P(SharedCollectives, GiveValuesToSeveralVariablesInOneCall) {
  auto x = session().shared<float, 2>("x");
  auto y = session().shared<int, 1>("y");
  const auto images = session().data(counting<float>(30), sr::Shape{10, 3});
  const auto labels = counting<int>(10);
  const std::vector<int> batch{7, 0, 7, 3};
  session().scatter({{x, images}, {y, labels}}, {.batch = batch});
  EXPECT_EQ(y.gather().to_vector(), batch);
  EXPECT_EQ(x.gather()(2, 1), 22);
  session().broadcast({{"x", images}, {y, labels}});
  EXPECT_EQ(x.get(world_size() - 1)(9, 2), 29);
  session().broadcast({{x, counting<float>(4), {2, 2}}});
  EXPECT_EQ(x.shape(0), (sr::Shape<2>{2, 2}));
  EXPECT_ERROR(session().broadcast({{"y", images}}), sr::ErrorKind::usage,
               "broadcast: 'y' is of int32, 1 dimension, its values are of float32, 2 dimensions");
  EXPECT_ERROR(session().scatter({{x, images}, {x, images}}), sr::ErrorKind::usage,
               "scatter: variable 'x' is given twice in one call");
}

TEST_P(SharedCollectives, VariablesAreMadeWithValuesAndFoundByName) {
  const auto made = session().shared("weights", counting<float>(6), sr::Shape{2, 3});
  EXPECT_EQ(made.get(world_size() - 1)(1, 2), 5);
  EXPECT_EQ(session().shared("bias", counting<int>(4)).get(0).size(), 4);
  const auto found = session().find_shared<float, 2>("weights");
  EXPECT_EQ(found.get(0).to_vector(), counting<float>(6));
  EXPECT_ERROR((session().find_shared<double, 2>("weights")), sr::ErrorKind::usage,
               "'weights' is of float32, 2 dimensions, asked for as of float64, 2 dimensions");
  EXPECT_ERROR((session().find_shared<float, 1>("weights")), sr::ErrorKind::usage, "asked for as of float32, 1 dim");
  EXPECT_ERROR((session().find_shared<int, 1>("bias")), sr::ErrorKind::usage,
               "no shared variable is named 'bias'; there are 'weights' (float32, 2 dimensions)");
  EXPECT_ERROR((session().shared<int, 1>("weights")), sr::ErrorKind::usage,
               "a shared variable named 'weights' already");
}

TEST_P(SharedCollectives, ANameIsFreeOnceItsVariableIsGone) {
  const auto slow = session().function([](sr::Local<int, 1> own) { own[0] += 1; });
  for (int i = 0; i < 20; ++i) {
    auto v = session().shared("v", counting<int>(3));
    static_cast<void>(slow.async(v));  // in flight, it holds the variable
  }
  session().wait();
  EXPECT_NE((session().shared<int, 1>().name()), (session().shared<int, 1>().name()));
}

TEST_P(SharedCollectives, MisuseIsRefusedBeforeAnyWorkerMoves) {
  auto v = session().shared("v", counting<float>(4));
  auto flags = session().shared<bool, 1>("flags");
  auto counts = session().shared("counts", counting<int>(4));
  const int n = world_size();
  EXPECT_ERROR(session().all_reduce({"v", "velocity"}, sr::Reduction::sum), sr::ErrorKind::usage,
               "all_reduce: no shared variable is named 'velocity'; there are 'counts' (int32, 1 dimension), 'flags'");
  EXPECT_ERROR(session().all_reduce({v, "v"}, sr::Reduction::sum), sr::ErrorKind::usage,
               "all_reduce: variable 'v' is given twice in one call");
  EXPECT_ERROR(session().all_reduce(std::vector<sr::AnyShared>(), sr::Reduction::sum), sr::ErrorKind::usage,
               "all_reduce requires at least one variable");
  EXPECT_ERROR(session().all_reduce({v, counts}, sr::Reduction::avg), sr::ErrorKind::usage,
               "all_reduce of 'counts': int32 has no avg");
  EXPECT_ERROR(flags.reduce_scatter(sr::Reduction::sum), sr::ErrorKind::usage,
               "reduce_scatter of 'flags': bool has no sum");
  EXPECT_ERROR(v.reduce(sr::Reduction::gather, 0), sr::ErrorKind::usage, "reduce of 'v': float32 has no gather");
  EXPECT_ERROR(v.reduce(sr::Reduction::sum, n), sr::ErrorKind::usage, "reduce requires a rank from 0 to");
  EXPECT_ERROR(session().broadcast({v}, -1), sr::ErrorKind::usage, "broadcast requires a rank from 0 to");
  for (int rank = 0; rank < n; ++rank) EXPECT_EQ(v.get(rank).to_vector(), counting<float>(4));
  if (n == 1) return;
  v.set(n - 1, counting<float>(5));
  EXPECT_ERROR(session().reduce_scatter({counts, v}, sr::Reduction::sum), sr::ErrorKind::usage,
               "reduce_scatter of 'v' requires equal shapes on all ranks, got [4] on rank 0 and [5] on rank");
  EXPECT_ERROR(static_cast<void>(v.reduce(sr::Reduction::sum)), sr::ErrorKind::usage, "reduce of 'v' requires equal");
  EXPECT_EQ(counts.get(0).to_vector(), counting<int>(4)) << "nothing was done to the others";
  auto rows = session().shared<float, 2>("rows");
  for (int rank = 0; rank < n; ++rank)
    rows.set(rank, std::vector<float>(static_cast<std::size_t>(rank + 1)), {1, rank + 1});
  EXPECT_ERROR(static_cast<void>(rows.gather_stacked()), sr::ErrorKind::usage,
               "gather_stacked of 'rows' requires equal shapes on all ranks, got [1, 1] on rank 0");
  EXPECT_ERROR(rows.all_gather(), sr::ErrorKind::usage, "all_gather of 'rows' requires rows of one shape");
  EXPECT_ERROR(static_cast<void>(rows.gather()), sr::ErrorKind::usage, "requires rows of one shape, got");
  EXPECT_ERROR(rows.all_reduce(sr::Reduction::sum), sr::ErrorKind::usage, "requires equal shapes on all ranks, got");
}

}  // namespace

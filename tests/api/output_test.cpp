// Results: each reduction, each element type, scalars and arrays, small and large. Also calls that request some of a
// function's outputs, and that results are the same in each run.

#include <cstring>
#include <random>

#include "tests/api/element_types.hpp"
#include "tests/support/on_workers.hpp"

namespace {

class Results : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Results, 1, 3);

template <class T>
struct Arrays {
  sr::Sum<T, 2> sum;
  sr::Min<T, 1> min;
  sr::Max<T, 1> max;
  sr::Prod<T, 1> prod;
};

template <class T>
Arrays<T> arrays(sr::CpuWorker& worker, std::int64_t size) {
  Arrays<T> r{.sum = {worker, {2, size}}, .min = {worker, {size}}, .max = {worker, {size}}, .prod = {worker, {size}}};
  for (std::int64_t i = 0; i < size; ++i) {
    r.sum(0, i) = static_cast<T>(static_cast<float>(worker.rank()));
    r.sum(1, i) = static_cast<T>(static_cast<float>(i % 5));
    r.min[i] = static_cast<T>(static_cast<float>(worker.rank() + i % 3));
    r.max[i] = r.min[i];
    r.prod[i] = static_cast<T>(2.0F);
  }
  return r;
}

template <class T>
void check_arrays(sr::Session& session, int n) {
  // The master combines arrays of 3 columns. The workers combine arrays of 40,000, each its part.
  for (const std::int64_t size : {std::int64_t{3}, std::int64_t{40'000}}) {
    const auto r = session.function(arrays<T>)(size);
    ASSERT_EQ(r.sum.shape(), (sr::Shape<2>{2, size}));
    for (std::int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(static_cast<float>(r.sum(0, i)), static_cast<float>(n * (n - 1) / 2));
      ASSERT_EQ(static_cast<float>(r.sum(1, i)), static_cast<float>(n * (i % 5)));
      ASSERT_EQ(static_cast<float>(r.min[i]), static_cast<float>(i % 3));
      ASSERT_EQ(static_cast<float>(r.max[i]), static_cast<float>(i % 3 + n - 1));
      ASSERT_EQ(static_cast<float>(r.prod[i]), static_cast<float>(1 << n));
    }
  }
}

TEST_P(Results, ReduceArraysOfEveryArithmeticType) {
  for_arithmetic_types([&]<class T> { check_arrays<T>(session(), world_size()); });
}

TEST_P(Results, OfTheWrongLengthAreAnErrorAndNoMore) {
  const auto f = session().function([] { return sr::Gather<int, 1>(std::vector<int>{1, 2}, {1000}); });
  EXPECT_ERROR(f(), sr::ErrorKind::function, "requires 1000 values, got 2");
}

struct Stacked {
  sr::Stack<double> number;
  sr::Stack<std::int32_t, 2> row;
  sr::Stack<float, 3> matrix;
};

TEST_P(Results, AreStackedByRank) {
  const auto f = session().function([](sr::CpuWorker& worker, sr::Scattered<const int, 1> x) {
    const std::vector<std::int32_t> own{worker.rank(), static_cast<std::int32_t>(x.rows())};
    Stacked r{.number = 0.5 * worker.rank(), .row = {own, {2}}, .matrix = {worker, {2, 3}}};
    r.matrix(0, 1, 2) = static_cast<float>(worker.rank());
    return r;
  });
  const auto x = session().data(counting<int>(11));
  const auto r = f(x);
  ASSERT_EQ(r.number.shape(), (sr::Shape<1>{world_size()}));
  ASSERT_EQ(r.row.shape(), (sr::Shape<2>{world_size(), 2}));
  ASSERT_EQ(r.matrix.shape(), (sr::Shape<3>{world_size(), 2, 3}));
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(r.number[rank], 0.5 * rank);
    EXPECT_EQ(r.row(rank, 0), rank);
    EXPECT_EQ(r.matrix(rank, 1, 2), static_cast<float>(rank));
    EXPECT_EQ(r.matrix(rank, 0, 2), 0);
  }
  EXPECT_EQ(f(x, {.batch = 1}).row.shape(), (sr::Shape<2>{1, 2})) << "of the ranks that had rows";
  EXPECT_EQ(f(x, {.batch = 11, .slices = 2}).number.rows(), 2 * world_size()) << "of each slice";
}

TEST_P(Results, EmptyArraysAreFine) {
  const auto f = session().function([](sr::CpuWorker& worker) { return sr::Gather<float, 2>(worker, {0, 3}); });
  EXPECT_EQ(f().shape(), (sr::Shape<2>{0, 3}));
}

// ---- some of the outputs -----------------------------------------------------------------------------------------

struct Stats {
  sr::Avg<double, 1> mean;
  sr::Max<double> max;
  sr::Sum<std::int64_t, 1> counts;
  sr::Gather<double, 1> rows;
};

std::int64_t wanted_of(sr::CpuWorker& worker) {
  std::int64_t wanted = 0;
  for (std::size_t i = 0; i < 4; ++i) wanted |= std::int64_t{worker.wants(i)} << i;
  return wanted;
}

/// Computes all outputs. Writes to `counts` which outputs are requested, as bits. Depending on `size`, the outputs are
/// small, or so large that the workers reduce them.
Stats stats(sr::CpuWorker& worker, sr::Scattered<const double, 1> x, std::int64_t size) {
  Stats own{.mean = {worker, {size}}, .max = x[0], .counts = {worker, {size}}, .rows = {x, {x.rows()}}};
  for (const double value : x) {
    for (auto& mean : own.mean) mean += value / static_cast<double>(x.rows());
    own.max = std::max(own.max.value(), value);
  }
  std::fill(own.counts.begin(), own.counts.end(), wanted_of(worker));
  return own;
}

class Subset : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Subset, 1, 3);

TEST_P(Subset, GivesTheSameAsTheWhole) {
  const auto f = session().function(stats);
  const auto x = session().data(counting<double>(20));
  for (const std::int64_t size : {1, 40'000}) {
    for (const std::int64_t slices : {1, 3}) {
      const sr::CallOptions options{.slices = slices};
      const Stats all = f(x, size, options);
      const auto last = static_cast<std::size_t>(size) - 1;
      EXPECT_EQ((f.only<&Stats::mean>()(x, size, options).to_vector()[last]), all.mean.to_vector()[last]);
      EXPECT_EQ((f.only<&Stats::max>()(x, size, options)), 19);
      EXPECT_EQ((f.only<&Stats::rows>()(x, size, options).to_vector()), counting<double>(20));
      const auto [rows, max, mean] = f.only<&Stats::rows, &Stats::max, &Stats::mean>()(x, size, options);
      EXPECT_EQ(rows.to_vector(), counting<double>(20));
      EXPECT_EQ(max, 19);
      EXPECT_EQ(mean.size(), size);
      EXPECT_EQ(mean.to_vector(), all.mean.to_vector());
    }
  }
}

TEST_P(Subset, IsKnownToTheBody) {
  const auto f = session().function(stats);
  const auto x = session().data(std::vector<double>(static_cast<std::size_t>(world_size()), 1.0));
  const auto sum_of = [&](std::int64_t mask) { return mask * world_size(); };
  EXPECT_EQ(f(x, 1).counts[0], sum_of(15));
  EXPECT_EQ((f.only<&Stats::counts>()(x, 1)[0]), sum_of(4));
  EXPECT_EQ((std::get<1>(f.only<&Stats::max, &Stats::counts>()(x, 1))[0]), sum_of(6));
  EXPECT_EQ((f.only<2>()(x, 1)[0]), sum_of(4)) << "by number";
}

TEST_P(Subset, NeedNotBeReturnedWhereItIsNotWanted) {
  const auto f = session().function([](sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
    Stats own;
    if (worker.wants<&Stats::mean>()) throw std::runtime_error("computed what nobody wants");
    if (worker.wants<&Stats::max>()) own.max = x[x.rows() - 1];
    // This output is not requested, so its errors do not matter: it has no memory, and its shape differs between ranks.
    own.counts = sr::detail::HandleAccess::make<sr::Sum<std::int64_t, 1>>(sr::Shape<1>{worker.rank() + 1},
                                                                          sr::detail::OutputBuffer{});
    return own;
  });
  const auto x = session().data(counting<double>(20));
  EXPECT_EQ(f.only<&Stats::max>()(x), 19);
  EXPECT_EQ(f.only<&Stats::max>()(x, {.slices = 2}), 19);
  EXPECT_ERROR(f.only<&Stats::counts>()(x), sr::ErrorKind::function, "without memory");
}

TEST_P(Subset, WorksInFlightAndOnOneRank) {
  const auto f = session().function(stats);
  const auto x = session().data(counting<double>(20));
  const auto max = f.only<&Stats::max>();
  std::vector<sr::Future<sr::Max<double>>> futures;
  for (int i = 0; i < 10; ++i) futures.push_back(max.async(x, 1, {.batch = i + 1}));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get(), i);
  EXPECT_EQ(max.on_rank(world_size() - 1)(x, 1), 19);
  EXPECT_EQ((f.on_rank(0).only<&Stats::counts>()(x, 1)[0]), 4);
}

// ---- the same in each run ----------------------------------------------------------------------------------------

class Properties : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Properties, 1, 3);

sr::Sum<float, 1> noisy_sums(sr::CpuWorker& worker, sr::Scattered<const float, 2> x) {
  sr::Sum<float, 1> sums(worker, {x.shape(1)});
  std::normal_distribution<float> noise;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = 0; j < x.shape(1); ++j) sums[j] += x(i, j) * noise(worker.rng());
  }
  return sums;
}

TEST_P(Properties, SessionsWithTheSameSeedAgreeInEveryBit) {
  const auto run = [](sr::Session& session) {
    const auto x = session.data(counting<float>(300), sr::Shape{100, 3});
    const auto f = session.function(noisy_sums);
    std::vector<float> results;
    for (const int slices : {1, 3}) {
      const auto sums = f(x, {.slices = slices});
      results.insert(results.end(), sums.begin(), sums.end());
    }
    return results;
  };
  const auto first = run(session());
  end_session();
  sr::Session same(options());
  const auto second = run(same);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), sizeof(float) * first.size()), 0);
  same.close();
  auto other = options();
  other.seed = 1;
  sr::Session different(other);
  EXPECT_NE(run(different), first);
  different.close();
}

}  // namespace

// Results: each reduction, each element type, scalars and arrays, small and large.

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
  check_arrays<sr::float16>(session(), world_size());
  check_arrays<sr::bfloat16>(session(), world_size());
  check_arrays<float>(session(), world_size());
  check_arrays<double>(session(), world_size());
  check_arrays<std::int8_t>(session(), world_size());
  check_arrays<std::int16_t>(session(), world_size());
  check_arrays<std::int32_t>(session(), world_size());
  check_arrays<std::int64_t>(session(), world_size());
  check_arrays<std::uint8_t>(session(), world_size());
  check_arrays<std::uint16_t>(session(), world_size());
  check_arrays<std::uint32_t>(session(), world_size());
  check_arrays<std::uint64_t>(session(), world_size());
}

TEST_P(Results, OfTheWrongLengthAreAnErrorAndNoMore) {
  const auto f = session().function([] { return sr::Gather<int, 1>(std::vector<int>{1, 2}, {1000}); });
  EXPECT_ERROR(f(), sr::ErrorKind::function, "requires 1000 values, got 2");
}

TEST_P(Results, ShapesThatDifferBetweenRanksAreAnError) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has no other to differ from";
  for (const std::int64_t base : {std::int64_t{1}, std::int64_t{40'000}}) {
    const auto f = session().function(
        [](sr::CpuWorker& worker, std::int64_t size) { return sr::Sum<float, 1>(worker, {size + worker.rank()}); },
        "uneven");
    EXPECT_ERROR(f(base), sr::ErrorKind::function, "output 0 has shape");
    EXPECT_EQ(session().function([]() -> sr::Sum<int> { return 1; })(), world_size());
  }
}

TEST_P(Results, WithoutMemoryAreAnError) {
  const auto f = session().function(
      [](sr::CpuWorker&) { return sr::Sum<float, 1>(sr::Shape<1>{3}, syncrun::detail::OutputBuffer{}); });
  EXPECT_ERROR(f(), sr::ErrorKind::function, "without memory");
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

}  // namespace

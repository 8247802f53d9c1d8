// Calls that request some of a function's outputs. The others are neither transferred nor reduced. A body can ask which
// outputs are requested, and leave the others uncomputed.

#include "tests/support/on_workers.hpp"

namespace {

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
    own.counts = sr::Sum<std::int64_t, 1>(sr::Shape<1>{worker.rank() + 1}, syncrun::detail::OutputBuffer{});
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

}  // namespace

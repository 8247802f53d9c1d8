// Results and random numbers are the same in each run.

#include <cstring>
#include <random>

#include "tests/support/on_workers.hpp"

namespace {

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

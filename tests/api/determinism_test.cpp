// Properties that hold for random shapes, numbers of workers, slices and index lists.

#include <cmath>
#include <cstring>
#include <random>

#include "tests/support/on_workers.hpp"

namespace {

class Properties : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Properties, 1, 2, 3, 4, 5, 6, 7, 8);

struct Sums {
  sr::Sum<std::int64_t> integers;
  sr::Avg<float, 1> floats;
};

Sums sums(sr::CpuWorker& worker, sr::Scattered<const std::int64_t, 1> x, sr::Scattered<const float, 2> y) {
  Sums r{.integers = std::accumulate(x.begin(), x.end(), std::int64_t{0}), .floats = {worker, {y.shape(1)}}};
  for (std::int64_t i = 0; i < y.rows(); ++i) {
    for (std::int64_t j = 0; j < y.shape(1); ++j) r.floats[j] += y(i, j) / static_cast<float>(y.rows());
  }
  return r;
}

TEST_P(Properties, ResultsDoNotDependOnWorkersSlicesOrRepetition) {
  std::mt19937_64 random(42);  // the same cases for every number of workers
  const auto f = session().function(sums);
  for (int round = 0; round < 20; ++round) {
    const auto rows = static_cast<std::int64_t>(random() % 60 + 1);
    const auto columns = static_cast<std::int64_t>(random() % 5 + 1);
    std::vector<std::int64_t> x(static_cast<std::size_t>(rows));
    std::vector<float> y(static_cast<std::size_t>(rows * columns));
    for (auto& v : x) v = static_cast<std::int64_t>(random() % 1000);
    for (auto& v : y) v = static_cast<float>(random() % 1000) / 1000;
    std::vector<std::uint32_t> batch(random() % 80 + 1);
    for (auto& index : batch) index = static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(rows));
    const auto slices = static_cast<std::int64_t>(random() % batch.size() + 1);

    std::int64_t expected = 0;
    std::vector<double> means(static_cast<std::size_t>(columns));
    for (const auto index : batch) {
      expected += x[index];
      for (std::size_t j = 0; j < means.size(); ++j) {
        means[j] +=
            static_cast<double>(y[index * static_cast<std::size_t>(columns) + j]) / static_cast<double>(batch.size());
      }
    }

    const auto dx = session().data(x);
    const auto dy = session().data(y, sr::Shape{rows, columns});
    const auto r = f(dx, dy, {.batch = batch, .slices = slices});
    EXPECT_EQ(r.integers, expected);
    for (std::size_t j = 0; j < means.size(); ++j) {
      EXPECT_NEAR(r.floats[static_cast<std::int64_t>(j)], means[j], 1e-5 * std::max(1.0, means[j]));
    }
    const auto again = f(dx, dy, {.batch = batch, .slices = slices});
    EXPECT_EQ(std::memcmp(again.floats.data(), r.floats.data(), sizeof(float) * means.size()), 0)
        << "two runs differ in their bits";
  }
}

TEST_P(Properties, EveryRowIsComputedExactlyOnce) {
  const auto f = session().function(
      [](sr::Scattered<const std::int64_t, 1> x) { return sr::Gather<std::int64_t, 1>(x, {x.rows()}); });
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto rows = random() % 200 + 1;
    const auto values = counting<std::int64_t>(rows);
    const auto all = f(session().data(values), {.slices = static_cast<std::int64_t>(random() % rows + 1)});
    EXPECT_EQ(all.to_vector(), values);
  }
}

TEST_P(Properties, EverySelectedRowIsComputedExactlyOnceHoweverItIsSelected) {
  const auto f = session().function([](sr::Scattered<const std::int64_t, 1> x, sr::Scattered<const std::int64_t, 1> y,
                                       sr::Broadcast<const std::int64_t, 1> all) {
    std::vector<std::int64_t> seen;
    for (std::int64_t i = 0; i < x.rows(); ++i) seen.push_back(1'000'000 * all.rows() + 1000 * y[i] + x[i]);
    return sr::Gather<std::int64_t, 1>(seen, {seen.size()});
  });
  std::mt19937_64 random(11);
  for (int round = 0; round < 30; ++round) {
    const auto rows = static_cast<std::int64_t>(random() % 12 + 1);  // often fewer than workers
    const auto draw = [&](std::int64_t below) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
    };
    const sr::Slice slice{draw(rows), rows};
    std::vector<std::int32_t> list(static_cast<std::size_t>(draw(20) + 1));
    for (auto& index : list) index = static_cast<std::int32_t>(draw(rows));
    const std::int64_t count = draw(rows) + 1;

    std::vector<std::int64_t> expected;
    sr::CallOptions options;
    if (round % 3 == 0) {
      options.batch = slice;
      for (std::int64_t i = slice.begin; i < slice.end; ++i) expected.push_back(i);
    } else if (round % 3 == 1) {
      options.batch = list;
      expected.assign(list.begin(), list.end());
    } else {
      options.batch = count;
      for (std::int64_t i = 0; i < count; ++i) expected.push_back(i);
    }
    options.slices = draw(static_cast<std::int64_t>(expected.size())) + 1;
    const auto x = session().data(counting<std::int64_t>(static_cast<std::size_t>(rows)));
    const auto batch = session().data(counting<std::int64_t>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] += 1'000'000 * rows + 1000 * static_cast<std::int64_t>(i);
    }
    EXPECT_EQ(f(x, sr::minibatch(batch), x, options).to_vector(), expected) << "round " << round;
  }
}

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

TEST_P(Properties, GatherOfScatterIsTheIdentity) {
  std::mt19937_64 random(9);
  auto variable = session().shared<double, 2>("x");
  for (int round = 0; round < 10; ++round) {
    const auto rows = static_cast<std::int64_t>(random() % 50);
    const auto values = counting<double>(static_cast<std::size_t>(rows * 3));
    variable.scatter(values, {rows, 3});
    EXPECT_EQ(variable.gather().to_vector(), values);
  }
}

TEST_P(Properties, RandomNumbersFollowTheSessionsSeed) {
  const auto draw = session().function([](sr::CpuWorker& worker) {
    return sr::Gather<std::uint8_t, 1>(std::vector{static_cast<std::uint8_t>(worker.rng()())}, {1});
  });
  const auto first = draw().to_vector();
  end_session();
  sr::Session same(options());
  EXPECT_EQ(same.function([](sr::CpuWorker& worker) {
                  return sr::Gather<std::uint8_t, 1>(std::vector{static_cast<std::uint8_t>(worker.rng()())}, {1});
                })()
                .to_vector(),
            first);
  same.close();
}

}  // namespace

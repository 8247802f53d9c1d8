// Session::balance: weights from measured times. The bodies sleep, and measure for how long.

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/on_workers.hpp"

namespace {

using namespace std::chrono_literals;

/// In a worker: for each run of compute(), the seconds that it took for a row.
std::vector<double> seconds_per_row;

/// Rank 0 sleeps four times as long for a row as the others.
void compute(const sr::CpuWorker& worker) {
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(worker.rows() * (worker.rank() == 0 ? 16ms : 4ms));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  seconds_per_row.push_back(taken.count() / static_cast<double>(worker.rows()));
}

class Balance : public OnWorkers {
 protected:
  /// Expects the weights that follow from how long the ranks slept. On a busy machine, a rank sleeps longer than it
  /// asked for. In each of the five calls, a rank has called compute() `slices` times, with equally many rows.
  void expect_weights_of_times(const std::vector<double>& weights, std::ptrdiff_t slices = 1) {
    ASSERT_EQ(weights.size(), static_cast<std::size_t>(world_size()));
    std::vector<double> speeds;
    for (int rank = 0; rank < world_size(); ++rank) {
      const double time = median_of_the_last_three(rank, slices);
      speeds.push_back(1 / time);
    }
    const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    for (std::size_t rank = 0; rank < weights.size(); ++rank) {
      EXPECT_NEAR(weights[rank], speeds[rank] / all, 0.04) << "rank " << rank;
    }
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
  }

 private:
  double median_of_the_last_three(int rank, std::ptrdiff_t slices) {
    const auto times_of = session().function([] {
      const auto count = static_cast<std::int64_t>(seconds_per_row.size());
      return sr::Gather<double, 1>(seconds_per_row, {count});
    });
    const std::vector<double> times = times_of.on_rank(rank)().to_vector();
    if (std::ssize(times) != 5 * slices) throw std::runtime_error(std::to_string(times.size()) + " runs of compute()");
    std::vector<double> by_call;
    for (auto slice = times.begin() + 2 * slices; slice < times.end(); slice += slices) {
      by_call.push_back(std::accumulate(slice, slice + slices, 0.0) / static_cast<double>(slices));
    }
    std::sort(by_call.begin(), by_call.end());
    return by_call.at(1);
  }
};
INSTANTIATE_ON_WORKERS(Balance, 3);

sr::Sum<std::int64_t> rows_in_time(sr::CpuWorker& worker) {
  compute(worker);
  return worker.rows();
}

TEST_P(Balance, GivesFewRowsToTheSlowRank) {
  const auto f = session().function(rows_in_time);
  const auto weights = session().balance(f, {.rows = 20 * world_size()});
  expect_weights_of_times(weights);
  EXPECT_EQ(session().weights(), weights);
  const auto where = session().function(
      [](sr::CpuWorker& worker) { return sr::Gather<std::int64_t, 1>(std::vector{worker.rows()}, {1}); });
  const auto rows = where({.rows = 1000}).to_vector();
  EXPECT_NEAR(static_cast<double>(rows[0]), 1000 * weights[0], 1);
  EXPECT_EQ(f({.rows = 30}), 30);
}

TEST_P(Balance, MeasuresWithEqualShares) {
  std::vector<double> none(static_cast<std::size_t>(world_size()), 0.0);
  none.back() = 1;
  session().set_weights(none);
  expect_weights_of_times(session().balance(session().function(rows_in_time), {.rows = 20 * world_size()}));
}

TEST_P(Balance, TakesTheArgumentsAndTheOptionsOfTheCall) {
  const auto x = session().data(counting<double>(static_cast<std::size_t>(80)));
  const auto f = session().function([](sr::CpuWorker& worker, sr::Scattered<const double, 1> x, double offset) {
    compute(worker);
    return sr::Sum<double>(std::accumulate(x.begin(), x.end(), offset));
  });
  expect_weights_of_times(session().balance(f, x, 1.5, sr::CallOptions{.batch = 20 * world_size(), .slices = 4}), 4);
}

// In the collective, each rank waits for the slow one. This time does not count.
TEST_P(Balance, LeavesOutWaitsForPeersInCollectives) {
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm) -> sr::Max<int> {
    comm.barrier();
    compute(worker);
    comm.barrier();
    return comm.all_reduce(1, sr::Reduction::sum);
  });
  expect_weights_of_times(session().balance(f, {.rows = 20 * world_size()}));
}

TEST_P(Balance, MeasuresTheRowsOfCopiesAsTheyAre) {
  std::vector<double> rising = counting<double>(static_cast<std::size_t>(world_size()), 1);
  session().set_weights(rising);
  auto own = session().shared<double, 1>("own");
  own.scatter(counting<double>(static_cast<std::size_t>(40)));
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::Sliced<const double, 1>) -> sr::Sum<int> { return compute(worker), 1; });
  expect_weights_of_times(session().balance(f, own));
}

TEST_P(Balance, RefusesWhatHasNoTimePerRowAndKeepsTheWeights) {
  const std::vector<double> weights = counting<double>(static_cast<std::size_t>(world_size()), 1);
  session().set_weights(weights);
  const auto f = session().function(rows_in_time, "rows_in_time");
  const std::string ranks = std::to_string(world_size());
  EXPECT_ERROR(session().balance(f), sr::ErrorKind::usage,
               "balance measures the time per row, but 'rows_in_time' has no rows: pass the number of rows of the call "
               "as rows");
  EXPECT_ERROR(session().balance(f, {.rows = world_size() - 1}), sr::ErrorKind::usage,
               "balance requires a row for each of the " + ranks + " ranks, but 'rows_in_time' has " +
                   std::to_string(world_size() - 1) + ": pass more rows");
  EXPECT_ERROR(session().balance(f.on_rank(1), {.rows = 10}), sr::ErrorKind::usage,
               "balance measures all " + ranks +
                   " ranks, but 'rows_in_time' runs on 1: pass the function without on_rank or on");
  auto own = session().shared<double, 1>("own");
  own.scatter(std::vector<double>{1});
  const auto sliced = session().function([](sr::Sliced<const double, 1>) {}, "sliced");
  EXPECT_ERROR(session().balance(sliced, own), sr::ErrorKind::usage,
               "balance requires a row for each rank, but 'sliced' has none on rank 0: give every rank rows");
  const auto fails = session().function([](sr::CpuWorker& worker) {
    if (worker.rank() == 1) throw std::runtime_error("no");
  });
  EXPECT_ERROR(session().balance(fails, {.rows = 10}), sr::ErrorKind::function, "no");
  EXPECT_EQ(session().weights(), weights);
  EXPECT_EQ(f({.rows = 3}), 3) << "the session is usable afterwards";
}

TEST_P(Balance, RefusesAFunctionOfAnotherSession) {
  const auto f = session().function(rows_in_time, "rows_in_time");
  end_session();
  sr::Session other(options());
  EXPECT_ERROR(other.balance(f, {.rows = 10}), sr::ErrorKind::usage, "balance: 'rows_in_time' is of another session");
  other.close();
}

TEST(BalanceOfOneRank, GivesItAllRows) {
  sr::Session session({.processes = "1"});
  EXPECT_EQ(session.balance(session.function([](sr::CpuWorker&) {}), {.rows = 3}), std::vector<double>{1});
  session.close();
}

}  // namespace

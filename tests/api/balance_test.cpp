// Session::balance: weights from measured times. The bodies sleep, so that their speeds are known.

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tests/support/on_workers.hpp"

namespace {

using namespace std::chrono_literals;

class Balance : public OnWorkers {
 protected:
  /// Rank 0 needs four times as long for a row as the others.
  void expect_four_times(const std::vector<double>& weights) const {
    ASSERT_EQ(weights.size(), static_cast<std::size_t>(world_size()));
    const double slow = 1.0 / (4 * world_size() - 3);
    EXPECT_NEAR(weights[0], slow, 0.04);
    for (std::size_t rank = 1; rank < weights.size(); ++rank) EXPECT_NEAR(weights[rank], 4 * slow, 0.04);
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
  }
};
INSTANTIATE_ON_WORKERS(Balance, 2, 3);

void compute(const sr::CpuWorker& worker) {
  std::this_thread::sleep_for(worker.rows() * (worker.rank() == 0 ? 16ms : 4ms));
}

sr::Sum<std::int64_t> rows_in_time(sr::CpuWorker& worker) {
  compute(worker);
  return worker.rows();
}

TEST_P(Balance, GivesFewRowsToTheSlowRank) {
  const auto f = session().function(rows_in_time);
  const auto weights = session().balance(f, {.rows = 20 * world_size()});
  expect_four_times(weights);
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
  expect_four_times(session().balance(session().function(rows_in_time), {.rows = 20 * world_size()}));
}

TEST_P(Balance, TakesTheArgumentsAndTheOptionsOfTheCall) {
  const auto x = session().data(counting<double>(static_cast<std::size_t>(80)));
  const auto f = session().function([](sr::CpuWorker& worker, sr::Scattered<const double, 1> x, double offset) {
    compute(worker);
    return sr::Sum<double>(std::accumulate(x.begin(), x.end(), offset));
  });
  expect_four_times(session().balance(f, x, 1.5, sr::CallOptions{.batch = 20 * world_size(), .slices = 4}));
}

// In the collective, each rank waits for the slow one. This time does not count.
TEST_P(Balance, LeavesOutWaitsForPeersInCollectives) {
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm) -> sr::Max<int> {
    comm.barrier();
    compute(worker);
    comm.barrier();
    return comm.all_reduce(1, sr::Reduction::sum);
  });
  expect_four_times(session().balance(f, {.rows = 20 * world_size()}));
}

TEST_P(Balance, MeasuresTheRowsOfCopiesAsTheyAre) {
  std::vector<double> rising = counting<double>(static_cast<std::size_t>(world_size()), 1);
  session().set_weights(rising);
  auto own = session().shared<double, 1>("own");
  own.scatter(counting<double>(static_cast<std::size_t>(40)));
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::Sliced<const double, 1>) -> sr::Sum<int> { return compute(worker), 1; });
  expect_four_times(session().balance(f, own));
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

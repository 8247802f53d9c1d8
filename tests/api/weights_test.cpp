// Weights of ranks: set_weights, and balance(), which finds them. Results are those of one rank, and only the division of
// the rows differs.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/api/train_steps.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using namespace std::chrono_literals;

/// Weights 1, 2, 3, ... for ranks 0, 1, 2, ...
class Weights : public OnWorkers {
 protected:
  std::vector<double> rising() const { return counting<double>(static_cast<std::size_t>(world_size()), 1); }
  std::vector<double> falling() const {
    std::vector<double> weights = rising();
    std::reverse(weights.begin(), weights.end());
    return weights;
  }
  int last() const { return world_size() - 1; }
};
INSTANTIATE_ON_WORKERS(Weights, 1, 3);

/// Weights 0, 1, 1, ...: rank 0 has no rows. Requires two ranks.
class WeightZero : public OnWorkers {
 protected:
  void SetUp() override {
    OnWorkers::SetUp();
    std::vector<double> weights(static_cast<std::size_t>(world_size()), 1.0);
    weights.front() = 0;
    session().set_weights(weights);
  }
};
INSTANTIATE_ON_WORKERS(WeightZero, 3);

struct Seen {
  sr::Gather<std::int64_t, 1> first;  // by rank
  sr::Gather<std::int64_t, 1> rows;
};
Seen seen_by(const sr::AnyWorker& worker) {
  const auto one = [](std::int64_t value) { return sr::Gather<std::int64_t, 1>(std::vector{value}, {1}); };
  return {.first = one(worker.first_row()), .rows = one(worker.rows())};
}
Seen rows_of_array(sr::CpuWorker& worker, sr::Scattered<const double, 1>) { return seen_by(worker); }
Seen rows_of_number(sr::CpuWorker& worker) { return seen_by(worker); }

struct Stats {
  sr::Avg<double> number;
  sr::Avg<double, 1> numbers;
  sr::Sum<std::int64_t> rows;
  sr::Gather<double, 1> all;
};
Stats stats(sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
  Stats own{.number = mean, .numbers = {worker, {2}}, .rows = x.rows(), .all = {worker, {x.rows()}}};
  std::fill(own.numbers.begin(), own.numbers.end(), mean);
  std::copy(x.begin(), x.end(), own.all.begin());
  return own;
}
std::vector<double> squares(std::size_t count) {
  auto values = counting<double>(count);
  for (auto& value : values) value *= value;
  return values;
}

TEST_P(Weights, DivideTheRowsOfAnArrayAndOfANumberInProportion) {
  session().set_weights(rising());
  EXPECT_EQ(session().weights(), rising());
  const std::int64_t unit = world_size() * (world_size() + 1) / 2;
  const auto x = session().data<double, 1>({10 * unit});
  std::vector<std::int64_t> rows, first;
  for (int rank = 0; rank < world_size(); ++rank) {
    first.push_back(rank == 0 ? 0 : first.back() + rows.back());
    rows.push_back(10 * (rank + 1));
  }
  const Seen of_array = session().function(rows_of_array)(x);
  EXPECT_EQ(of_array.rows.to_vector(), rows);
  EXPECT_EQ(of_array.first.to_vector(), first);
  const Seen of_number = session().function(rows_of_number)({.rows = 10 * unit});
  EXPECT_EQ(of_number.rows.to_vector(), rows);
  EXPECT_EQ(of_number.first.to_vector(), first);
}

TEST_P(Weights, OfTheRanksOfASetDivideItsRows) {
  if (world_size() < 3) GTEST_SKIP() << "requires three ranks";
  const auto x = session().data(squares(12));
  session().set_weights(rising());
  const auto f = session().function(rows_of_array).on({session().device(1), session().device(0)});
  EXPECT_EQ(f(x).rows.to_vector(), (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(session().function(rows_of_array).on_rank(2)(x).rows.to_vector(), std::vector<std::int64_t>{12});
  const auto means = session().function(stats);
  EXPECT_NEAR(means.on({session().device(0), session().device(1)})(x).number, means(x).number, 1e-9);
}

TEST_P(Weights, ChangeNothingForCallsInFlight) {
  const auto x = session().data<double, 1>({static_cast<std::int64_t>(12 * rising().size())});
  const auto f = session().function(rows_of_array);
  const std::vector<std::int64_t> equal(rising().size(), 12);
  std::vector<double> one(rising().size(), 0.0);
  one.back() = 1;
  std::vector<sr::Future<Seen>> futures;
  for (int i = 0; i < 60; ++i) {  // more than an inbox holds
    session().set_weights(i % 2 == 0 ? std::vector<double>() : one);
    futures.push_back(f.async(x));
  }
  session().set_weights(rising());
  for (std::size_t i = 0; i < futures.size(); ++i) {
    const auto rows = futures[i].get().rows.to_vector();
    if (i % 2 == 0) EXPECT_EQ(rows, equal);
    else EXPECT_EQ(rows, std::vector<std::int64_t>{x.rows()});
  }
}

TEST_P(Weights, DivideWhatIsScatteredToAVariable) {
  session().set_weights(rising());
  const auto values = squares(40);
  auto own = session().shared<double, 1>("own");
  own.scatter(values);
  EXPECT_EQ(own.gather().to_vector(), values);
  const auto x = session().data(values);
  const auto sum_of_differences = session().function(
      [](sr::Scattered<const double, 1> x, sr::Sliced<const double, 1> own) -> sr::Sum<double> {
        double sum = 0;
        for (std::int64_t row = 0; row < x.rows(); ++row) sum += std::abs(x[row] - own[row]);
        return sum;
      },
      "differences");
  EXPECT_EQ(sum_of_differences(x, own), 0) << "both are divided in the same way";
  EXPECT_EQ(sum_of_differences(x, own, {.slices = 5}), 0);
  if (world_size() == 1) return;
  session().set_weights(falling());
  EXPECT_ERROR(sum_of_differences(x, own), sr::ErrorKind::usage,
               "of argument 1 (Sliced 'own') of 'differences': after set_weights, scatter the variable again");
  own.scatter(values, {.batch = 40});
  EXPECT_EQ(sum_of_differences(x, own), 0);
}

TEST_P(Weights, DivideWhatACheckpointScatters) {
  const TemporaryFolder folder;
  const auto values = squares(30);
  auto own = session().shared<double, 1>("own");
  own.scatter(values);
  sr::save_checkpoint(folder.path(), {{"own", own, sr::Placement::scattered}});
  std::vector<double> one(rising().size(), 0.0);
  one.back() = 1;
  session().set_weights(one);
  sr::Checkpoint(folder.path()).load({{"own", own}});
  EXPECT_EQ(own.get(last()).to_vector(), values);
  EXPECT_EQ(own.gather().to_vector(), values);
}

TEST_P(Weights, LeaveWhatCollectivesDivideEqual) {
  std::vector<double> one(rising().size(), 0.0);
  one.front() = 1;
  session().set_weights(one);
  auto sums = session().shared<double, 1>("sums");
  sums.broadcast(std::vector<double>(rising().size() * 3, 1.0));
  sums.reduce_scatter(sr::Reduction::sum);
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(sums.get(rank).to_vector(), std::vector<double>(3, world_size()));
  }
  const auto f = session().function([](sr::Comm& comm) -> sr::Max<std::int64_t> {
    return comm.share(3 * static_cast<std::int64_t>(comm.world_size())).count;
  });
  EXPECT_EQ(f(), 3);
}

TEST_P(Weights, CountForOneRankOfACallOnlyIfTheyAreAboveZero) {
  if (world_size() < 3) GTEST_SKIP() << "requires three ranks";
  std::vector<double> weights(rising().size(), 0.0);
  weights[2] = 1;
  session().set_weights(weights);
  const auto x = session().data(squares(12));
  const auto f = session().function(rows_of_array, "rows_of_array");
  EXPECT_ERROR(f.on_rank(0)(x), sr::ErrorKind::usage,
               "a call of 'rows_of_array' has 12 rows and requires a rank with a weight above 0, but it runs on rank 0 "
               "only, of weight 0: change the weights with set_weights");
  EXPECT_ERROR(f.on({session().device(0), session().device(1)})(x), sr::ErrorKind::usage, "it runs on ranks 0, 1 only");
  EXPECT_ERROR(session().function(rows_of_number).on_rank(1)({.rows = 3}), sr::ErrorKind::usage, "has 3 rows");
  const auto without_rows = session().function([]() -> sr::Sum<int> { return 1; });
  EXPECT_EQ(without_rows.on_rank(0)(), 1) << "weights are about rows only";
  EXPECT_EQ(f.on_rank(2)(x).rows.to_vector(), std::vector<std::int64_t>{12});
}

TEST_P(Weights, ThatMakeNoSenseAreRefusedAndChangeNothing) {
  session().set_weights(rising());
  const std::size_t ranks = rising().size();
  EXPECT_ERROR(session().set_weights(std::vector<double>(ranks + 1, 1.0)), sr::ErrorKind::usage,
               "set_weights requires one weight per rank, " + std::to_string(ranks) + " in all, got " +
                   std::to_string(ranks + 1));
  std::vector<double> wrong = rising();
  wrong.back() = -1;
  EXPECT_ERROR(session().set_weights(wrong), sr::ErrorKind::usage,
               "a weight is a finite number of at least 0, got -1 for rank " + std::to_string(last()));
  wrong.back() = std::numeric_limits<double>::quiet_NaN();
  EXPECT_ERROR(session().set_weights(wrong), sr::ErrorKind::usage, "got nan for rank");
  EXPECT_ERROR(session().set_weights(std::vector<double>(ranks, 0.0)), sr::ErrorKind::usage, "got 0 for every rank");
  EXPECT_EQ(session().weights(), rising());
}

TEST_P(WeightZero, StillRunsABodyWithACommunicator) {
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm) -> sr::Max<std::int64_t> {
    if (comm.all_reduce(1, sr::Reduction::sum) != comm.world_size()) return -1;
    return comm.all_reduce(worker.rank() == 0 ? worker.rows() : 0, sr::Reduction::sum);
  });
  EXPECT_EQ(f({.rows = 9}), 0);
}

TEST_P(Weights, LetATrainStepGiveTheParametersOfOneRank) {
  std::vector<double> one(rising().size(), 0.0);
  one.back() = 1;
  const std::vector<std::vector<double>> changing{rising(), {}, falling(), one};
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    const auto before = [&](auto& step, int i) {
      session().set_weights(changing[static_cast<std::size_t>(i) % changing.size()]);
      // The state of a sharded step keeps equal shares. So it can be gathered and scattered with any weights.
      if (form == sr::StepForm::replicated) return;
      for (auto& vector : step.state()) vector.scatter(vector.gather().to_vector());
    };
    follow_serial_steps<double>(session(), least_squares::loss_and_gradient<double>, {.form = form}, 9, 1e-12, before);
  }
}

// ---- balance(): bodies sleep, and measure for how long -----------------------------------------------------------

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
  std::vector<double> one(static_cast<std::size_t>(world_size()), 0.0);
  one.back() = 1;
  session().set_weights(one);  // balance() measures with equal shares
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

TEST_P(Balance, GivesOneRankAllRowsAndRefusesAFunctionOfAnotherSession) {
  const auto f = session().function(rows_in_time, "rows_in_time");
  end_session();
  sr::Session other({.processes = "1"});
  EXPECT_EQ(other.balance(other.function([](sr::CpuWorker&) {}), {.rows = 3}), std::vector<double>{1});
  EXPECT_ERROR(other.balance(f, {.rows = 10}), sr::ErrorKind::usage, "balance: 'rows_in_time' is of another session");
  other.close();
}

}  // namespace

// Weights of ranks: Session::set_weights. Results are those of one rank, and only the division of the rows differs.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/least_squares.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

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

TEST_P(Weights, KeepTheAverageOfACommunicatorExact) {
  const auto x = session().data(squares(53));
  const auto f = session().function([](sr::Comm& comm, sr::Scattered<const double, 1> x) -> sr::Max<double> {
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    return comm.all_reduce(x.rows() == 0 ? 0 : sum / static_cast<double>(x.rows()), sr::Reduction::avg);
  });
  session().set_weights(rising());
  double mean = 0;
  for (const double value : squares(53)) mean += value / 53;
  for (const std::int64_t rows : {53, 1}) EXPECT_NEAR(f(x, {.batch = rows}), rows == 1 ? 0 : mean, 1e-9);
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

/// Takes steps with weights that change, and compares with serial steps.
void follow_steps(sr::Session& session, sr::StepForm form, const std::vector<std::vector<double>>& weights) {
  constexpr std::int64_t kRows = 41;
  auto serial = least_squares::problem(kRows, 9, 3);
  const auto x = session.data(serial.x, sr::Shape{kRows, 9});
  const auto y = session.data(serial.y);
  auto params = session.shared<double, 1>();
  params.broadcast(serial.params);
  auto step = sr::train_step<sr::Adam>(session, least_squares::loss_and_gradient<double>, params, {.form = form});
  std::mt19937 random(7);
  for (std::size_t i = 0; i < 12; ++i) {
    session.set_weights(weights[i % weights.size()]);
    std::vector<std::int64_t> batch(6 + random() % kRows);
    for (auto& row : batch) row = static_cast<std::int64_t>(random() % kRows);
    const sr::Adam adam{.learning_rate = 0.02};
    const double loss = step(x, y, adam, {.batch = batch, .slices = static_cast<std::int64_t>(1 + i % 4)});
    EXPECT_NEAR(loss, serial.take(batch, adam), 1e-10);
    if (form == sr::StepForm::replicated) continue;
    // The state of a sharded step keeps equal shares. So it can be gathered and scattered with any weights.
    for (auto& vector : step.state()) vector.scatter(vector.gather().to_vector());
  }
  const auto first = params.get(0).to_vector();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], serial.params[i], 1e-12);
  for (int rank = 1; rank < session.world_size(); ++rank) EXPECT_EQ(params.get(rank).to_vector(), first);
}

TEST_P(Weights, LetATrainStepGiveTheParametersOfOneRank) {
  std::vector<double> one(rising().size(), 0.0);
  one.back() = 1;
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    follow_steps(session(), form, {rising(), {}, falling(), one});
  }
}

}  // namespace

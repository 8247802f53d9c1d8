// Rows without an array: calls whose rows are only a number, CallOptions::rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "tests/support/on_workers.hpp"

namespace {

class RowCount : public OnWorkers {};
INSTANTIATE_ON_WORKERS(RowCount, 1, 3);

static_assert(std::is_convertible_v<std::size_t, sr::RowCount> && std::is_convertible_v<short, sr::RowCount>);
static_assert(!std::is_convertible_v<bool, sr::RowCount> && !std::is_convertible_v<double, sr::RowCount>,
              "a number of rows is an integer");

/// The number of each row.
sr::Gather<std::int64_t, 1> numbers(sr::CpuWorker& worker) {
  sr::Gather<std::int64_t, 1> out(worker, {worker.rows()});
  std::iota(out.begin(), out.end(), worker.first_row());
  return out;
}

/// Which rows a body computes, and in which slice.
sr::Gather<std::int64_t, 1> place_of(const sr::AnyWorker& worker) {
  return {std::vector<std::int64_t>{worker.first_row(), worker.rows(), worker.slice()}, {3}};
}

TEST_P(RowCount, SplitsRowsAsThoseOfAnArray) {
  const auto of_a_number = session().function([](sr::CpuWorker& worker) { return place_of(worker); });
  const auto of_an_array =
      session().function([](sr::CpuWorker& worker, sr::Scattered<const float, 1>) { return place_of(worker); });
  for (std::int64_t rows = 1; rows < 3 * world_size(); ++rows) {
    const auto x = session().data<float, 1>({rows});
    for (const std::int64_t slices : {std::int64_t{1}, rows}) {
      EXPECT_EQ(of_a_number({.rows = rows, .slices = slices}).to_vector(),
                of_an_array(x, {.slices = slices}).to_vector());
    }
  }
}

TEST_P(RowCount, RunsABodyWithACommunicatorOnEveryRank) {
  struct Seen {
    sr::Stack<std::int64_t> ranks;  // of the ranks with rows: only these return something
    sr::Max<double> mean;
  };
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    const int ranks = comm.all_reduce(1, sr::Reduction::sum);
    const double own = worker.rows() == 0 ? std::nan("") : static_cast<double>(worker.first_row());
    return Seen{.ranks = ranks, .mean = comm.all_reduce(own, sr::Reduction::avg)};
  });
  const Seen seen = f({.rows = 2});
  const std::size_t ranks_with_rows = world_size() == 1 ? 1 : 2;
  EXPECT_EQ(seen.ranks.to_vector(), std::vector<std::int64_t>(ranks_with_rows, world_size()));
  EXPECT_EQ(seen.mean, world_size() == 1 ? 0 : 0.5) << "a rank without rows does not count";
}

TEST_P(RowCount, GivesAllRowsToTheOneRankOfACall) {
  const auto f = session().function(numbers);
  for (int rank = 0; rank < world_size(); ++rank) {
    EXPECT_EQ(f.on_rank(rank)({.rows = 10, .slices = 3}).to_vector(), counting<std::int64_t>(10));
  }
}

TEST_P(RowCount, BelongsToTheCallInFlight) {
  const auto f = session().function(numbers);
  std::vector<sr::Future<sr::Gather<std::int64_t, 1>>> futures;
  for (std::size_t rows = 1; rows <= 40; ++rows) futures.push_back(f.async({.rows = rows}));
  for (std::size_t rows = 40; rows >= 1; --rows) {
    EXPECT_EQ(futures[rows - 1].get().to_vector(), counting<std::int64_t>(rows));
  }
}

TEST_P(RowCount, GoesWithArgumentsThatHaveNoRowsOfTheCall) {
  auto factor = session().shared<double, 1>("factor");
  factor.broadcast(std::vector<double>{2});
  const auto table = session().data(std::vector<double>{1, 2, 3});
  const auto f =
      session().function([](sr::CpuWorker& worker, sr::Broadcast<const double, 1> table, sr::Local<double, 1> factor,
                            sr::PerWorker<double> own, double offset) -> sr::Sum<double> {
        double sum = 0;
        for (std::int64_t i = 0; i < worker.rows(); ++i) sum += table[(worker.first_row() + i) % table.rows()] + offset;
        return factor[0] * own * sum;
      });
  const std::vector<double> own(static_cast<std::size_t>(world_size()), 0.5);
  EXPECT_EQ(f(table, factor, own, 10.0, {.rows = 30, .slices = 4}), 10 * (1 + 2 + 3) + 300);
}

TEST_P(RowCount, LeftOutCountsEveryRankAsOneRow) {
  const auto f = session().function([](sr::CpuWorker& worker) {
    return sr::Gather<std::int64_t, 1>(std::vector{worker.first_row(), worker.rows()}, {2});
  });
  std::vector<std::int64_t> expected;
  for (int rank = 0; rank < world_size(); ++rank) expected.insert(expected.end(), {0, 1});
  EXPECT_EQ(f({.rows = {}}).to_vector(), expected);
}

// More rows than any memory holds. The slices of a rank are as large.
TEST_P(RowCount, CanBeTheLargestInteger) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto f = session().function([](sr::CpuWorker& worker) -> sr::Sum<std::int64_t> { return worker.rows(); });
  const auto last = session().function(
      [](sr::CpuWorker& worker) -> sr::Max<std::int64_t> { return worker.first_row() + (worker.rows() - 1); });
  EXPECT_EQ(f({.rows = kMost, .slices = 3}), kMost);
  EXPECT_EQ(last({.rows = kMost, .slices = 3}), kMost - 1);
}

/// The gradient of the mean over the rows of (p - row)^2 is twice the mean of p - row, which is the result.
sr::Avg<double> distance_from_rows(sr::CpuWorker& worker, sr::Local<double, 1> params, sr::Local<double, 1> gradient) {
  double sum = 0;
  for (std::int64_t row = 0; row < worker.rows(); ++row) {
    sum += params[0] - static_cast<double>(worker.first_row() + row);
  }
  gradient[0] = 2 * sum / static_cast<double>(worker.rows());
  return sum / static_cast<double>(worker.rows());
}

TEST_P(RowCount, IsThatOfATrainStepWhoseBodyTakesNoRows) {
  for (const sr::StepForm form : {sr::StepForm::replicated, sr::StepForm::sharded}) {
    auto weights = session().shared<double, 1>();
    weights.broadcast(std::vector<double>{100});
    auto step = sr::train_step<sr::Sgd>(session(), distance_from_rows, weights, {.form = form});
    double expected = 100;
    for (const std::int64_t slices : {1, 2, 5}) {
      EXPECT_NEAR(step({.learning_rate = 0.25}, {.rows = 11, .slices = slices}), expected - 5, 1e-12);
      expected -= (expected - 5) / 2;
      for (int rank = 0; rank < world_size(); ++rank) EXPECT_NEAR(weights.get(rank)[0], expected, 1e-12);
    }
  }
}

TEST_P(RowCount, ThatMakesNoSenseIsRefusedBeforeAnyWorkerMoves) {
  const auto f = session().function(numbers, "numbers");
  EXPECT_ERROR(f({.rows = 0}), sr::ErrorKind::usage, "rows is from 1 to 9223372036854775807, got 0");
  EXPECT_ERROR(f({.rows = -2}), sr::ErrorKind::usage, "rows is from 1 to 9223372036854775807, got -2");
  EXPECT_ERROR(f({.rows = std::uint64_t{1} << 63U}), sr::ErrorKind::usage,
               "rows is from 1 to 9223372036854775807, got 9223372036854775808");
  EXPECT_ERROR(f({.batch = 3, .rows = 5}), sr::ErrorKind::usage,
               "batch was given together with rows, but 'numbers' has no scattered argument: leave batch out");
  EXPECT_ERROR(f({.batch = 3}), sr::ErrorKind::usage, "batch was given, but 'numbers' has no scattered argument");
  EXPECT_ERROR(f({.batch_s = 3, .rows = 5}), sr::ErrorKind::usage,
               "batch_s was given, but 'numbers' has no Sliced argument");
  EXPECT_ERROR(f({.rows = 5, .slices = 6}), sr::ErrorKind::usage, "slices is from 1 to the number of rows, 5, got 6");
  EXPECT_ERROR(f({.slices = 6}), sr::ErrorKind::usage,
               "slices is 6, but 'numbers' has no rows to slice: pass the number of rows of the call as rows");
  EXPECT_EQ(f({.rows = 3}).to_vector(), counting<std::int64_t>(3)) << "the session is usable afterwards";
}

TEST_P(RowCount, IsRefusedBesideArgumentsThatHaveRows) {
  const auto x = session().data(counting<float>(10));
  auto own = session().shared<float, 1>("own");
  own.broadcast(counting<float>(10));
  const auto scattered = session().function([](sr::Scattered<const float, 1>) {}, "scattered");
  const auto sliced = session().function([](sr::Sliced<const float, 1>) {}, "sliced");
  EXPECT_ERROR(scattered(x, {.rows = 10}), sr::ErrorKind::usage,
               "rows is 10, but the call has the rows of argument 0 (Scattered) of 'scattered': leave rows out, and "
               "select rows with batch");
  EXPECT_ERROR(scattered(sr::minibatch(x), {.rows = 10}), sr::ErrorKind::usage,
               "rows is 10, but the call has the rows of argument 0 (Scattered) of 'scattered': leave rows out");
  EXPECT_ERROR(sliced(own, {.rows = 10}), sr::ErrorKind::usage,
               "rows is 10, but the call has the rows of argument 0 (Sliced 'own') of 'sliced': leave rows out, and "
               "select rows with batch_s");
  scattered(x);
  sliced(own);
}

}  // namespace

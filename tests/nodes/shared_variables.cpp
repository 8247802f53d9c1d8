#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

std::vector<double> counted(std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0);
  return values;
}

void add_rank(CpuWorker& worker, Local<double, 1> x) {
  for (std::int64_t i = 0; i < x.shape()[0]; ++i) x(i) += worker.rank();
}

struct RowSums {
  Sum<double> sum;
  Avg<double> mean;
  Gather<std::int64_t, 1> first_rows;
};

/// The sum of all elements, the mean of a row, and the first row of each rank in the call.
RowSums sum_rows(CpuWorker& worker, Sliced<const double, 2> x) {
  double sum = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < x.shape()[1]; ++column) sum += x(row, column);
  }
  return {.sum = sum,
          .mean = x.rows() == 0 ? 0 : sum / static_cast<double>(x.rows()),
          .first_rows = {std::vector<std::int64_t>{worker.first_row()}, Shape{1}}};
}

Sum<double> first_of(CpuWorker&, Local<const double, 1> x) { return {x(0)}; }

/// Adds the column sums of the worker's rows of x to its copy of `total`, and puts their averages into its copy of `mean`.
void add_rows(CpuWorker& worker, Scattered<const double, 2> x, Update<op::sum, double, 1> total,
              Update<op::avg, double, 1> mean) {
  if (worker.slice() == 0) std::copy(total.original().begin(), total.original().end(), total.value().begin());
  for (std::int64_t column = 0; column < x.shape()[1]; ++column) {
    double sum = 0;
    for (std::int64_t row = 0; row < x.rows(); ++row) sum += x(row, column);
    total.value()[column] += sum;
    mean.value()[column] = sum / static_cast<double>(x.rows());
  }
}

void fail_on(CpuWorker& worker, Update<op::sum, double, 1> total, int rank) {
  total.value()[0] = 1;
  if (worker.rank() == rank) throw std::runtime_error("it broke");
}

/// Each rank has a copy of its own, which bodies write and the master reads and assigns.
void check_copies(Session& session, std::int64_t length) {
  const auto values = counted(length);
  auto weights = session.shared("weights", values, Shape{length});
  const auto f = session.function(add_rank, "add_rank");
  for (int round = 0; round < 2; ++round) f(weights);
  const int last = session.world_size() - 1;
  weights.set(last, std::vector<double>(3, 100));
  f(weights);
  for (int rank = 0; rank < last; ++rank) {
    const auto copy = weights.get(rank);
    require(copy.shape()[0] == length, "the shape of a copy");
    for (std::int64_t i = 0; i < length; ++i)
      require(copy(i) == values[static_cast<std::size_t>(i)] + 3 * rank, "the values of a copy");
  }
  auto changed = weights.get_async(last).get();
  require(changed.shape()[0] == 3 && weights.shape(last)[0] == 3, "the shape of a copy that was set");
  require(changed(2) == 100 + last, "the values of a copy that was set");
  weights.broadcast(std::vector<double>{7});
  require(session.function(first_of, "first_of")(weights).value() == 7 * session.world_size(), "a broadcast");
}

/// The rows of a variable are divided among all ranks.
void check_rows(Session& session) {
  constexpr std::int64_t kRows = 1000, kWidth = 50;
  const auto values = counted(kRows * kWidth);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  auto x = session.shared<double, 2>("x");
  x.scatter(session.data(values, Shape{kRows, kWidth}));
  require(x.gather().to_vector() == values, "the rows come back in order");
  const auto f = session.function(sum_rows, "sum_rows");
  const auto all = f(x);
  require(all.sum.value() == sum, "the sum of all rows");
  require(std::abs(all.mean.value() - sum / kRows) < 1e-6, "the mean of a row");
  std::int64_t before = 0;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    require(all.first_rows.to_vector()[static_cast<std::size_t>(rank)] == before, "the first row of a rank");
    before += x.lengths()[static_cast<std::size_t>(rank)];
  }
  const auto some = f(x, {.batch_s = Slice{2, 4}, .slices = 2});
  double expected = 0;
  std::int64_t begin = 0;
  for (const std::int64_t rows : x.lengths()) {
    for (std::int64_t at = (begin + 2) * kWidth; at < (begin + 4) * kWidth; ++at)
      expected += values[static_cast<std::size_t>(at)];
    begin += rows;
  }
  require(some.sum.value() == expected, "the sum of some rows of each rank");
}

/// Each rank adds its rows to its copy, and all ranks of all nodes commit or none does.
void check_updates(Session& session) {
  constexpr std::int64_t kRows = 601;
  for (const std::int64_t width : {3, 2000}) {
    const auto values = counted(kRows * width);
    const auto x = session.data(values, Shape{kRows, width});
    auto total = session.shared("total", std::vector<double>(static_cast<std::size_t>(width)), Shape{width});
    auto mean = session.shared("mean", std::vector<double>(static_cast<std::size_t>(width)), Shape{width});
    const auto f = session.function(add_rows, "add_rows");
    f(x, total, mean);
    f(x, total, mean, {.slices = 3});
    const double first = static_cast<double>(width) * (kRows - 1) * kRows / 2;  // the sum of the first column
    double sum = 0, rows = 0;
    for (int rank = 0; rank < session.world_size(); ++rank) {
      sum += total.get(rank)(0);
      rows += total.get(rank)(0) / 2 / mean.get(rank)(0);
    }
    require(sum == 2 * first, "each rank adds its rows twice");
    require(std::abs(rows - kRows) < 1e-6, "the average of each rank's rows");
    const auto g = session.function(fail_on, "fail_on");
    for (int rank = 0; rank < session.world_size(); ++rank) {
      const int other = session.world_size() - 1 - rank;
      const double before = total.get(other)(0);
      bool has_thrown = false;
      try {
        g(total, rank);
      } catch (const Error&) {
        has_thrown = true;
      }
      require(has_thrown, "a body that throws fails its call");
      require(total.get(other)(0) == before, "no rank commits a failed update");
    }
  }
}

/// Collectives that the master calls.
void check_collectives(Session& session) {
  const int last = session.world_size() - 1;
  const auto n = static_cast<std::int64_t>(session.world_size());
  for (const std::int64_t length : {std::int64_t{7}, std::int64_t{200'000}}) {
    auto x = session.shared("x", counted(length), Shape{length});
    x.all_reduce(Reduction::sum);
    require(x.get(last)(length - 1) == static_cast<double>((length - 1) * n), "all_reduce");
    const auto reduced = x.reduce(Reduction::sum);
    require(reduced(length - 1) == static_cast<double>((length - 1) * n * n), "reduce to the master");
    x.set(last, std::vector<double>{4, 5});
    x.broadcast(last);
    require(x.get(0).to_vector() == std::vector<double>{4, 5}, "broadcast from a rank of another node");
    x.all_gather();
    require(x.shape(last)[0] == 2 * n && x.get(0)(2 * n - 1) == 5, "all_gather");
    x.reduce_scatter(Reduction::max);
    require(x.gather().to_vector().size() == static_cast<std::size_t>(2 * n), "reduce_scatter");
    auto y = session.shared("y", counted(length), Shape{length});
    y.reduce(Reduction::max, last, {.route = Route::host});
    require(y.get(last)(length - 1) == static_cast<double>(length - 1), "reduce to a rank");
  }
}

}  // namespace

bool use_shared_variables(Session& session, const std::string& action) {
  if (action != "variables") return false;
  for (const std::int64_t length : {std::int64_t{5}, std::int64_t{200'000}}) check_copies(session, length);
  check_rows(session);
  check_updates(session);
  check_collectives(session);
  for (int i = 0; i < 200; ++i) session.shared("for a moment", counted(1000), Shape{1000});
  std::printf("as expected\n");
  return true;
}

}  // namespace syncrun::test

// docs/api/results.md

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [function]
struct Summary {
  sr::Avg<double> mean;           // a number
  sr::Sum<std::int64_t> rows;     // a number
  sr::Max<double, 1> max;         // an array: needs the worker and its shape
  sr::Gather<double, 1> squares;  // one value per row, in the order of the rows
};

Summary summarize(sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
  Summary own{.mean = 0.0, .rows = x.rows(), .max = {worker, {1}}, .squares = {worker, {x.rows()}}};
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    sum += x[i];
    own.max[0] = i == 0 || x[i] > own.max[0] ? x[i] : own.max[0];
    own.squares[i] = x[i] * x[i];
  }
  own.mean = sum / static_cast<double>(x.rows());
  return own;
}
// [/function]

// [stack]
struct Each {
  sr::Stack<std::int64_t> rows;   // a number per rank
  sr::Stack<double, 2> extremes;  // a row per rank
};

Each each(sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  Each own{.rows = x.rows(), .extremes = {worker, {2}}};
  own.extremes(0, 0) = *least;  // row 0 is its own
  own.extremes(0, 1) = *most;
  return own;
}
// [/stack]

// [wants]
Summary sparing(sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
  Summary own;
  own.rows = x.rows();
  own.mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
  if (worker.wants<&Summary::max>()) own.max = {std::vector{*std::max_element(x.begin(), x.end())}, {1}};
  if (worker.wants<&Summary::squares>()) {
    own.squares = {worker, {x.rows()}};
    std::transform(x.begin(), x.end(), own.squares.begin(), [](double value) { return value * value; });
  }
  return own;
}
// [/wants]

void program(sr::Session& session) {
  // [call]
  const auto x = session.data(std::vector<double>{5, 1, 4, 2, 3});
  const Summary r = session.function(summarize)(x);
  std::printf("mean %g, %d rows, max %g, squares", r.mean.value(), static_cast<int>(r.rows), r.max[0]);
  for (const double square : r.squares) std::printf(" %g", square);
  std::printf("\n");
  // [/call]
  // [each]
  const Each per_rank = session.function(each)(x);
  for (std::int64_t rank = 0; rank < per_rank.rows.rows(); ++rank) {
    std::printf("rank %d: %d rows, %g to %g\n", static_cast<int>(rank), static_cast<int>(per_rank.rows[rank]),
                per_rank.extremes(rank, 0), per_rank.extremes(rank, 1));
  }
  // [/each]
  // [only]
  const auto f = session.function(sparing);
  const sr::Sum<std::int64_t> rows = f.only<&Summary::rows>()(x);
  const auto [squares, max] = f.only<&Summary::squares, &Summary::max>()(x, {.slices = 2});
  std::printf("%d rows, first square %g, max %g\n", static_cast<int>(rows), squares[0], max[0]);
  // [/only]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

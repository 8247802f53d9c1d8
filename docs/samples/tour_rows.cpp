// Tour, step 3: which rows, in how many passes, and exact averages.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "points.hpp"

namespace sr = syncrun;

// [functions]
/// The mean of the rows.
sr::Avg<double> mean(sr::Scattered<const double, 1> x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.rows());
}

/// What each worker got: its rank, its first row and its number of rows.
sr::Gather<std::int64_t, 2> shares(sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
  sr::Gather<std::int64_t, 2> seen(worker, {1, 3});
  seen(0, 0) = worker.rank();
  seen(0, 1) = x.first_row();
  seen(0, 2) = x.rows();
  return seen;
}
// [/functions]

void program(sr::Session& session) {
  // [calls]
  const Points points = make_points(500);
  const auto x = session.data(points.x);
  const auto f = session.function(mean);
  std::printf("all rows:          %.6f\n", f(x).value());
  std::printf("in four slices:    %.6f\n", f(x, {.slices = 4}).value());
  std::printf("the first ten:     %.6f\n", f(x, {.batch = sr::Slice{0, 10}}).value());
  const std::vector<int> picked{499, 0, 0};
  std::printf("three by index:    %.6f\n", f(x, {.batch = picked}).value());
  std::printf("on one device:     %.6f\n", f.on_rank(0)(x).value());

  const auto seen = session.function(shares)(x);
  for (std::int64_t i = 0; i < seen.rows(); ++i) {
    std::printf("rank %d: rows from %d, %d of them\n", static_cast<int>(seen(i, 0)), static_cast<int>(seen(i, 1)),
                static_cast<int>(seen(i, 2)));
  }
  // [/calls]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

// The example of the README: mean and maximum of the columns of a matrix.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

// [example]
#include <syncrun/syncrun.hpp>

namespace sr = syncrun;

struct Stats {
  sr::Avg<double, 1> mean;
  sr::Max<double, 1> max;
};

Stats column_stats(sr::CpuWorker& worker, sr::Scattered<const double, 2> x) {  // runs on every worker, on its rows
  Stats own{.mean = {worker, {x.shape(1)}}, .max = {worker, {x.shape(1)}}};
  std::copy(x[0].begin(), x[0].end(), own.max.begin());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < x.shape(1); ++column) {
      own.mean[column] += x(row, column) / static_cast<double>(x.rows());
      own.max[column] = std::max(own.max[column], x(row, column));
    }
  }
  return own;
}

void program(sr::Session& session) {  // runs once, in the master
  std::vector<double> values(500 * 2);
  std::iota(values.begin(), values.end(), 0);
  const auto x = session.data(values, sr::Shape{500, 2});

  const auto f = session.function(column_stats);
  const Stats r = f(x);                                      // scatters the rows, computes, reduces
  const Stats r4 = f(x, {.slices = 4});                      // the same result, with a quarter of the rows at a time
  const Stats rb = f(x, {.batch = std::vector{499, 0, 0}});  // only rows 499, 0 and 0 again
  auto half = f.async(x, {.batch = sr::Slice{0, 250}});      // starts the call and does not wait for it
  for (const Stats& s : {std::cref(r), std::cref(r4), std::cref(rb)}) {
    std::printf("mean %.1f %.1f, max %.0f %.0f\n", s.mean[0], s.mean[1], s.max[0], s.max[1]);
  }
  std::printf("mean of the first half: %.1f\n", half.get().mean[0]);
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
// [/example]

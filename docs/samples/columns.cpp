// An example of the tour: mean and maximum of the columns of a matrix.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [function]
struct Stats {
  sr::Avg<double, 1> mean;
  sr::Max<double, 1> max;
};

Stats column_stats(sr::CpuWorker& worker, sr::Scattered<const double, 2> x) {
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
// [/function]

void program(sr::Session& session) {
  // [calls]
  std::vector<double> values(500 * 2);
  std::iota(values.begin(), values.end(), 0);
  const auto x = session.data(values, sr::Shape{500, 2});
  const Stats r = session.function(column_stats)(x);
  std::printf("mean %.1f %.1f, max %.0f %.0f\n", r.mean[0], r.mean[1], r.max[0], r.max[1]);
  // [/calls]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

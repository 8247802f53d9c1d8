// A function that updates a shared variable. Each worker adds its own rows to its own copy. All slices of a call see
// the copy as it was before the call. Syncrun adds up what the slices write, and replaces the copy after the last
// slice.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/examples/checks.hpp"

namespace examples {
namespace {

namespace sr = syncrun;

constexpr std::int64_t kColumns = 3;

/// Adds the column sums of the worker's rows of x to its copy of `total`. Only the first slice adds the old value,
/// because the values of all slices are added up.
void add_rows(sr::CpuWorker& worker, sr::Scattered<const double, 2> x, sr::Update<sr::op::sum, double, 1> total) {
  if (worker.slice() == 0) std::copy(total.original().begin(), total.original().end(), total.value().begin());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) total.value()[column] += x(row, column);
  }
}

int program(sr::Session& session) {
  const sr::Shape shape{100, kColumns};
  std::vector<double> x_values(static_cast<std::size_t>(shape.elements()));
  std::iota(x_values.begin(), x_values.end(), 0);
  const auto x = session.data(x_values, shape);

  // Every copy starts at zero. Each worker adds its own rows twice, the second time in four slices.
  const auto total = session.shared("total", std::vector<double>(kColumns, 0.0));
  const auto add = session.function(add_rows);
  add(x, total);
  add(x, total, {.slices = 4});

  for (int rank = 0; rank < session.world_size(); ++rank) {
    std::printf("copy of rank %d:", rank);
    for (const double value : total.get(rank)) std::printf(" %g", value);
    std::printf("\n");
  }
  Checks check;
  const std::vector<double> expected{2 * 14850, 2 * 14950, 2 * 15050};  // two times 3 * (0 + ... + 99) + 100 * column
  check.close("together they are twice the sum of all rows", expected, total.reduce(sr::Reduction::sum).to_vector());
  return check.conclude();
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }

// A shared variable: an array with a copy of its own on every worker, which a function updates and the master
// can collect, reduce, read and write.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

constexpr std::int64_t kColumns = 3;

/// Adds to each worker's copy of `total` the column sums of its rows of x. The slices of a call all see the
/// copy as it was before; what they write is added up and takes its place after the last, so that only the
/// first brings the old value along.
void add_rows(sr::CpuWorker& worker, sr::Scattered<const double, 2> x, sr::Update<sr::op::sum, double, 1> total) {
  if (worker.slice() == 0) std::copy(total.original().begin(), total.original().end(), total.value().begin());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) total.value()[column] += x(row, column);
  }
}

/// The sum of all copies, for the master: a reduction that leaves the copies alone.
sr::Sum<double, 1> sum_of_copies(sr::Local<double, 1> total) { return {total.span(), total.shape()}; }

void print(const char* what, std::span<const double> values) {
  std::printf("%-24s", what);
  for (const double value : values) std::printf(" %8g", value);
  std::printf("\n");
}

int program(sr::Session& session) {
  const int last = session.world_size() - 1;
  const sr::Shape shape{100, kColumns};
  std::vector<double> x_values(static_cast<std::size_t>(shape.elements()));
  std::iota(x_values.begin(), x_values.end(), 0);
  const auto x = session.data(x_values, shape);

  // Every copy starts at zero; each worker adds its own rows, twice, the second time in four slices.
  auto total = session.shared<double, 1>("total");
  total.broadcast(std::vector<double>(kColumns, 0.0));
  const auto add = session.function(add_rows);
  add(x, total);
  add(x, total, {.slices = 4});
  const std::vector<double> expected{2 * 14850, 2 * 14950, 2 * 15050};  // two times 3 * (0 + ... + 99) + 100 * column

  // The copies, and what they add up to: collected here, reduced by a function, reduced in place on every worker.
  const auto copies = total.gather();
  std::vector<double> gathered(kColumns, 0.0);
  for (int rank = 0; rank <= last; ++rank) {
    const auto copy = copies.span().subspan(rank * kColumns, kColumns);
    print(("copy of rank " + std::to_string(rank) + ":").c_str(), copy);
    for (std::int64_t i = 0; i < kColumns; ++i) gathered[i] += copy[i];
  }
  const auto reduced = session.function(sum_of_copies)(total).to_vector();
  print("reduced to the master:", reduced);
  total.all_reduce(sr::Reduction::sum);
  const auto all_reduced = total.get(last).to_vector();
  print("all_reduced, last rank:", all_reduced);

  // One copy, written by the master, then given to all.
  const std::vector<double> ones(kColumns, 1.0);
  total.set(last, ones, {kColumns});
  total.broadcast(last);
  const auto first = total.get(0).to_vector();
  print("broadcast from the last:", first);

  const bool right = gathered == expected && reduced == expected && all_reduced == expected && first == ones;
  std::printf("%s\n", right ? "as expected" : "NOT AS EXPECTED");
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

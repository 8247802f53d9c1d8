// docs/api/producers.md

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [producer]
struct Points {  // one batch: any number of arrays
  sr::Data<double, 2> x;
  sr::Data<double, 1> y;
};

void build(sr::Producer<Points>& out, std::int64_t points, std::vector<double> line) {  // in processes of its own
  for (std::int64_t first = 64 * out.index(); first < points; first += 64 * out.count()) {
    auto batch = out.next();       // waits while the queue is full
    if (!batch) return;            // the queue was closed
    auto [x, y] = batch.arrays();  // in shared memory, to fill in place
    const std::int64_t rows = std::min<std::int64_t>(64, points - first);
    for (std::int64_t row = 0; row < rows; ++row) {
      x(row, 0) = 1;
      x(row, 1) = static_cast<double>(first + row);
      y[row] = line[0] + line[1] * x(row, 1);
    }
    batch.push(rows);  // the last one is shorter
  }
}
// [/producer]

// [function]
sr::Max<double> largest_error(sr::Scattered<const double, 2> x, sr::Scattered<const double, 1> y) {
  double largest = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    largest = std::max(largest, std::abs(3 * x(i, 0) + 2 * x(i, 1) - y[i]));
  }
  return largest;
}
// [/function]

// [every-node]
void build_own_rows(sr::Producer<Points>& out, std::int64_t batches) {
  for (std::int64_t number = out.index(); number < batches; number += out.count()) {
    auto batch = out.next();
    if (!batch) return;
    auto [x, y] = batch.arrays();
    const sr::Slice here = out.rows_here(64);  // the rows that the ranks of this node read
    for (std::int64_t row = here.begin; row < here.end; ++row) {
      x(row, 0) = 1;
      x(row, 1) = static_cast<double>(64 * number + row);
      y[row] = 3 + 2 * x(row, 1);
    }
    batch.push_here(64);  // with push(64), the function has to fill all rows
  }
}
// [/every-node]

// [broken]
void broken(sr::Producer<sr::Data<float, 1>>& out) {
  out.next().push();
  if (out.index() == 1) throw std::runtime_error("points-0001.bin: no such file");
  out.next().push();
}
// [/broken]

void program(sr::Session& session) {
  // [consume]
  const auto f = session.function(largest_error);
  auto queue = session.producers(3, build, {{64, 2}, {64}}, {.capacity = 6}, 150, std::vector<double>{3, 2});
  for (const Points& batch : queue) {
    std::printf("%d points, error %g\n", static_cast<int>(batch.x.rows()), f(batch.x, batch.y).value());
  }
  // [/consume]
  auto shared_queue = session.producers(2, build_own_rows, {{64, 2}, {64}}, {.places = sr::ProducerPlaces::every_node},
                                        std::int64_t{4});
  for (const Points& batch : shared_queue) f(batch.x, batch.y);
  // [fails]
  auto failing = session.producers(2, broken, {{8}}, {.name = "reader"});
  int batches = 0;
  try {
    while (failing.next()) ++batches;
  } catch (const sr::Error& error) {
    std::printf("after %d batches: %s\n", batches, error.what());
  }
  // [/fails]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

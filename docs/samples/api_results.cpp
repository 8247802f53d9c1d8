// docs/api/results.md

#include <cstdio>
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

void program(sr::Session& session) {
  // [call]
  const auto x = session.data(std::vector<double>{5, 1, 4, 2, 3});
  const Summary r = session.function(summarize)(x);
  std::printf("mean %g, %d rows, max %g, squares", r.mean.value(), static_cast<int>(r.rows), r.max[0]);
  for (const double square : r.squares) std::printf(" %g", square);
  std::printf("\n");
  // [/call]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

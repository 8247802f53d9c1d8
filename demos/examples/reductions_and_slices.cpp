// Several outputs, each with its own reduction, and slices. The function (columns.hpp) multiplies the worker's own rows
// of x with y. It returns the mean, the sum and the maximum of each column of the product, over all rows. With four
// slices, each worker needs a quarter of the memory, and the result is the same.

#include <cstdio>
#include <string>

#include "demos/examples/checks.hpp"
#include "demos/examples/columns.hpp"

namespace examples {
namespace {

void print(const char* what, const sr::ArrayView<const double, 1>& values) {
  std::printf("%-5s", what);
  for (const double value : values) std::printf(" %10.4f", value);
  std::printf("\n");
}

int program(sr::Session& session) {
  // The arrays have floats, and the function takes doubles. f.inputs converts them while it copies to shared memory.
  const auto x_numbers = random_numbers(kRows * kInner, 1);
  const auto y_numbers = random_numbers(kInner * kColumns, 2);
  const std::vector<float> x_floats(x_numbers.begin(), x_numbers.end());
  const std::vector<float> y_floats(y_numbers.begin(), y_numbers.end());
  const auto f = columns_function(session);
  const auto [x, y] =
      f.inputs(sr::view_of(x_floats, sr::Shape{kRows, kInner}), sr::view_of(y_floats, sr::Shape{kInner, kColumns}));

  const Columns on_all = f(x, y);
  const Columns in_slices = f(x, y, {.slices = 4});
  const Columns on_one = f.on_rank(0)(x, y);

  std::printf("columns of z over %d rows on %d workers\n", static_cast<int>(kRows), session.world_size());
  print("mean", {on_all.mean.data(), on_all.mean.shape()});
  print("sum", {on_all.sum.data(), on_all.sum.shape()});
  print("max", {on_all.max.data(), on_all.max.shape()});

  const std::vector<double> x_values(x_floats.begin(), x_floats.end());
  const std::vector<double> y_values(y_floats.begin(), y_floats.end());
  const auto expected = serially(x_values, y_values, rows_from(0, kRows));
  Checks check;
  check.close("all workers have the serial result", expected, values_of(on_all));
  check.close("in four slices, too", expected, values_of(in_slices));
  check.close("and the first device alone", expected, values_of(on_one));
  check.close("and the last one alone, in four slices", expected,
              values_of(f.on_rank(session.world_size() - 1)(x, y, {.slices = 4})));
  return check.conclude();
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }

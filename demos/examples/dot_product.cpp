// The first program: the products of the rows of x with a vector y, averaged over the rows. The rows of x are
// scattered among the workers, y is broadcast to all of them, and the average that comes back is exact.

#include <cmath>
#include <cstdio>
#include <random>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

/// Runs on every worker, on its own rows of x.
sr::Avg<double> mean_dot(sr::Scattered<const float, 2> x, sr::Broadcast<const float, 1> y) {
  double sum = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t column = 0; column < y.rows(); ++column) sum += double{x(row, column)} * double{y[column]};
  }
  return sum / static_cast<double>(x.rows());
}

/// Runs once, in the master.
int program(sr::Session& session) {
  const sr::Shape shape{500, 10};  // 500 rows: a third of them is not a whole number
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x_values(static_cast<std::size_t>(shape.elements()));
  std::vector<float> y_values(static_cast<std::size_t>(shape[1]));
  for (float& value : x_values) value = normal(random);
  for (float& value : y_values) value = normal(random);

  const auto x = session.data(x_values, shape);
  const auto y = session.data(y_values);
  const auto f = session.function(mean_dot);

  const double on_all = f(x, y);
  const double in_slices = f(x, y, {.slices = 4});  // a quarter of the device memory
  const double on_one = f.on_rank(0)(x, y);         // one worker alone, to check against

  std::printf("on %d workers:   %.12f\n", session.world_size(), on_all);
  std::printf("in four slices: %.12f\n", in_slices);
  std::printf("on one worker:  %.12f\n", on_one);
  const bool agree = std::abs(on_all - on_one) < 1e-12 && std::abs(in_slices - on_one) < 1e-12;
  std::printf("%s\n", agree ? "equal" : "NOT EQUAL");
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

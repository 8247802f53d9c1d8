// Tour, step 1: the same function on all devices.

// [all]
#include <cstdio>
#include <syncrun/syncrun.hpp>

#include "points.hpp"

namespace sr = syncrun;

sr::Avg<double> loss(sr::Scattered<const double, 1> x, sr::Scattered<const double, 1> y, double slope) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    const double error = slope * x[i] + 1 - y[i];
    sum += error * error;
  }
  return sum / static_cast<double>(x.rows());
}

void program(sr::Session& session) {
  const Points points = make_points(500);
  const auto x = session.data(points.x);
  const auto y = session.data(points.y);
  const auto f = session.function(loss);
  std::printf("loss %.12f on %d workers\n", f(x, y, 2.5).value(), session.world_size());
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }
// [/all]

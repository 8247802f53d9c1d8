// Tour, step 7: several calls in flight, and calls on devices.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

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
  // [calls]
  const auto f = session.function(loss);
  std::vector<sr::Future<sr::Avg<double>>> losses;
  for (const double slope : {2.0, 2.5, 3.0, 3.5}) losses.push_back(f.async(x, y, slope));
  // The master is free here, while the workers compute.
  for (auto& future : losses) std::printf("%.4f ", future.get().value());
  std::printf("\n");
  // [/calls]

  // [devices]
  const sr::Device first = session.device(0);
  const sr::Device second = session.device(1);
  std::vector<sr::Future<sr::Avg<double>>> slopes;
  slopes.push_back(f.on(first).async(x, y, 2.0));   // these two run at the same time,
  slopes.push_back(f.on(second).async(x, y, 3.0));  // each on all rows
  session.wait_all(slopes);
  std::printf("%.4f on the first device, %.4f on the second\n", slopes[0].get().value(), slopes[1].get().value());
  std::printf("%.4f on both together\n", f.on({first, second})(x, y, 2.5).value());
  // [/devices]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

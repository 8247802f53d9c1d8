// Tour, step 0: the serial program.

// [all]
#include <cstdio>
#include <span>

#include "points.hpp"

/// Mean squared error of the line y = slope x + 1.
double loss(std::span<const double> x, std::span<const double> y, double slope) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = slope * x[i] + 1 - y[i];
    sum += error * error;
  }
  return sum / static_cast<double>(x.size());
}

int main() {
  const Points points = make_points(500);
  std::printf("loss %.12f\n", loss(points.x, points.y, 2.5));
}
// [/all]

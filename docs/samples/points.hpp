#pragma once

// The data of the samples: noisy points around the line y = 3 x + 1, the same at every run.

#include <cmath>
#include <cstddef>
#include <vector>

struct Points {
  std::vector<double> x;
  std::vector<double> y;
};

inline Points make_points(std::size_t count) {
  Points points;
  for (std::size_t i = 0; i < count; ++i) {
    const double t = static_cast<double>(i);
    points.x.push_back(t / static_cast<double>(count));
    points.y.push_back(3 * points.x.back() + 1 + 0.1 * std::sin(t));
  }
  return points;
}

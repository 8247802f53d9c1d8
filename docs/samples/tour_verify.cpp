// Tour, step 8: does a program compute the same on one worker and on many?

#include <iostream>
#include <numeric>
#include <syncrun/syncrun.hpp>

#include "points.hpp"

namespace sr = syncrun;

// [function]
sr::Avg<double> mean_of(sr::Scattered<const double, 1> x) {
  return std::accumulate(x.begin(), x.end(), 0.0);  // a mistake: the sum
}
// [/function]

void program(sr::Session& session) {
  const auto x = session.data(make_points(600).x);
  // [calls]
  const auto f = session.function(mean_of);
  std::cout << session.verify(f)(x);
  // [/calls]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

// A program for two devices that it knows by name. Whoever starts it can give both names to one device.

// [all]
#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

sr::Sum<double> total(sr::Scattered<const double, 1> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

void program(sr::Session& session) {
  const auto x = session.data(std::vector<double>(100, 1.0));
  const auto f = session.function(total);
  const sr::Device left = session.device("left");
  const sr::Device right = session.device("right");
  auto left_sum = f.on(left).async(x, {.batch = sr::Slice{0, 60}});
  auto right_sum = f.on(right).async(x, {.batch = sr::Slice{60, 100}});
  std::printf("left is rank %d, %s: %g\n", left.rank(), left.id().c_str(), left_sum.get().value());
  std::printf("right is rank %d, %s: %g\n", right.rank(), right.id().c_str(), right_sum.get().value());
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.devices = "left=cpu0,right=cpu1"}); }
// [/all]

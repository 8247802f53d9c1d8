// Tour, step 5: updates of shared variables, and collectives called by the master.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "points.hpp"

namespace sr = syncrun;

// [function]
/// Counts how many rows lie in each tenth of [0, 1). The counts of a call's slices are added up. Each call starts from
/// zero and replaces the counts of the call before.
void count(sr::Scattered<const double, 1> x, sr::Update<sr::op::sum, std::int64_t, 1> bins) {
  for (const double value : x) bins.value()[static_cast<std::int64_t>(value * 10)] += 1;
}
// [/function]

void program(sr::Session& session) {
  // [calls]
  const auto x = session.data(make_points(500).x);
  auto bins = session.shared<std::int64_t, 1>("bins");
  bins.broadcast(std::vector<std::int64_t>(10));

  session.function(count)(x, bins, {.slices = 4});
  std::printf("counted by rank 0:   ");
  for (const auto n : bins.get(0)) std::printf(" %2d", static_cast<int>(n));

  bins.all_reduce(sr::Reduction::sum);
  std::printf("\ncounted by all ranks:");
  for (const auto n : bins.get(0)) std::printf(" %2d", static_cast<int>(n));
  std::printf("\n");
  // [/calls]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

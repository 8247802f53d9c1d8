// docs/samples/check_metrics.py reads the metrics of this program.

#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

sr::Sum<double> total(sr::Scattered<const double, 1> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

void program(sr::Session& session) {
  const auto x = session.data(std::vector<double>(1000, 1.0));
  const auto f = session.function(total);
  for (int i = 0; i < 100; ++i) f(x);

  for (const sr::RankMetrics& rank : session.metrics())
    std::printf("rank %d: %d calls\n", rank.rank, static_cast<int>(rank.calls));
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

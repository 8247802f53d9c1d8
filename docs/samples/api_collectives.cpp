// docs/api/collectives.md

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [function]
struct Seen {
  sr::Min<double> mean;
  sr::Min<int> ranks_with_rows;
  sr::Gather<int, 2> rows;
};

Seen collect(sr::CpuWorker& worker, sr::Comm& comm, sr::Scattered<const double, 1> x) {
  double mean = 0;
  for (const double value : x) mean += value / static_cast<double>(x.rows());
  comm.avg(std::span(&mean, 1));  // weighted by rows: ranks without any do not count
  const int with_rows = comm.all_reduce(x.rows() == 0 ? 0 : 1, sr::Reduction::sum);

  const std::vector<int> own{static_cast<int>(x.rows())};
  Seen seen{.mean = mean, .ranks_with_rows = with_rows, .rows = {worker, {1, comm.world_size()}}};
  comm.all_gather(std::span<const int>(own), seen.rows.span());
  return seen;
}
// [/function]

void program(sr::Session& session) {
  // [call]
  const auto f = session.function(collect);
  const Seen seen = f(session.data(std::vector<double>{1, 5}));  // two rows: one of three ranks has none
  std::printf("mean %g, %d ranks with rows; rank 0 saw", seen.mean.value(), seen.ranks_with_rows.value());
  for (int rank = 0; rank < session.world_size(); ++rank) std::printf(" %d", seen.rows(0, rank));
  std::printf("\n");
  // [/call]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

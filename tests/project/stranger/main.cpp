// Counts rows on every device. This is like the first program of a user who has installed Syncrun.

#include <cstdio>
#include <syncrun/syncrun.hpp>

namespace {

struct Count {
  syncrun::Sum<double> rows;
  syncrun::Gather<std::int32_t, 1> ranks;
};

Count count(syncrun::CpuWorker& worker, syncrun::Scattered<const float, 2> x) {
  Count mine{static_cast<double>(x.rows()), {worker, syncrun::Shape{1}}};
  mine.ranks[0] = worker.rank();
  return mine;
}

void program(syncrun::Session& session) {
  const auto counted = session.function(count)(session.data<float, 2>({500, 10}));
  std::printf("%d workers, %.0f rows, ranks", session.world_size(), static_cast<double>(counted.rows));
  for (const auto rank : counted.ranks) std::printf(" %d", rank);
  std::printf(", version %s\n", syncrun::version());
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

// Measures an empty call on GPUs, from the master to all workers and back. Each call is timed separately, as a loop in
// a user's program would see it.
//
//   syncrun -n 8 bench_gpu_call --seconds 0.5

#include "bench/comparators/gpu_report.hpp"
#include "syncrun/syncrun.hpp"

namespace {

int measure(syncrun::Session& session, int argc, char** argv) {
  const comparators::Options options = comparators::parse_options(argc, argv);
  const auto empty = session.function(
      +[](syncrun::CudaWorker&) {}, "nothing");
  constexpr int kWarm = 2000;
  const auto warm_start = comparators::Clock::now();
  for (int i = 0; i < kWarm; ++i) empty();
  const long count = comparators::iterations_for(options.seconds, comparators::microseconds_since(warm_start) / kWarm);
  std::vector<double> samples(static_cast<std::size_t>(count));
  for (auto& sample : samples) {
    const auto start = comparators::Clock::now();
    empty();
    sample = comparators::microseconds_since(start);
  }
  comparators::print_gpu_line({"gpu_call", "syncrun", session.world_size(), "empty call"}, std::move(samples));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, measure); }

// Measures all_reduce of a float32 shared variable inside a function, when the ranks are already running. After a
// barrier, rank 0 times each iteration of a loop separately. The sizes are powers of four.
//
//   bench_all_reduce --workers 2 --seconds 0.5 --min-bytes 1024 --max-bytes 67108864
//   mpirun ... syncrun -n 2 bench_all_reduce --sizes 8,1024,16777216       (on several hosts: run_nodes.py)

#include <string>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr int kWarm = 5;

struct Times {
  sr::Gather<double, 1> samples_us;
  sr::Min<std::int32_t> is_right;
};

/// Returns the times of rank 0. Fills in the values first, and checks them after one reduction.
Times all_reduce_loop(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, double seconds) {
  const auto rank = static_cast<std::size_t>(worker.rank());
  const auto workers = static_cast<std::size_t>(worker.world_size());
  for (std::int64_t i = 0; i < values.size(); ++i) {
    values[i] = comparators::initial_value(rank, static_cast<std::size_t>(i));
  }
  comm.barrier();
  comm.all_reduce(values, sr::Reduction::sum);
  std::int32_t is_right = 1;
  for (std::int64_t i = 0; i < values.size(); ++i) {
    float expected = 0;
    for (std::size_t r = 0; r < workers; ++r) {
      expected += comparators::initial_value(r, static_cast<std::size_t>(i));
    }
    if (values[i] != expected) is_right = 0;
  }

  comm.barrier();
  const auto warm_start = comparators::Clock::now();
  for (int i = 0; i < kWarm; ++i) comm.all_reduce(values, sr::Reduction::sum);
  const double warm_us = comm.all_reduce(comparators::microseconds_since(warm_start) / kWarm, sr::Reduction::max);
  const long count = comparators::iterations_for(seconds, warm_us);

  std::vector<double> samples(static_cast<std::size_t>(count));
  comm.barrier();
  for (auto& sample : samples) {
    const auto start = comparators::Clock::now();
    comm.all_reduce(values, sr::Reduction::sum);
    sample = comparators::microseconds_since(start);
  }
  if (rank != 0) samples.clear();
  return {.samples_us = {samples, {samples.size()}}, .is_right = is_right};
}

int measure(const comparators::Options& options) {
  sr::Session session({.processes = std::to_string(options.workers)});
  const auto loop = session.function(all_reduce_loop, "all_reduce_loop");
  auto values = session.shared<float, 1>("values");
  for (const std::size_t bytes : options.sizes()) {
    values.broadcast(std::vector<float>(bytes / sizeof(float)));
    const Times times = loop(values, options.seconds);
    if (times.is_right == 0) throw std::runtime_error("all_reduce gave a wrong sum");
    const auto workers = static_cast<std::size_t>(session.world_size());
    comparators::print_json_line({"all_reduce", "syncrun", "in place", workers, bytes}, times.samples_us.to_vector());
  }
  session.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  return measure(comparators::parse_options(argc, argv));
}

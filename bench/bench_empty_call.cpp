// Measures an empty call, from the master to N workers and back. Each call is timed separately, as a loop in a user's
// program would see it.
//
//   bench_empty_call --workers 4 --seconds 0.5

#include <string>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace {

void nothing() {}

int measure(const comparators::Options& options) {
  syncrun::Session session({.processes = std::to_string(options.workers)});
  const auto empty = session.function(nothing, "nothing");
  const auto warm_start = comparators::Clock::now();
  constexpr int kWarm = 2000;
  for (int i = 0; i < kWarm; ++i) empty();
  const long count = comparators::iterations_for(options.seconds, comparators::microseconds_since(warm_start) / kWarm);
  std::vector<double> samples(static_cast<std::size_t>(count));
  for (auto& sample : samples) {
    const auto start = comparators::Clock::now();
    empty();
    sample = comparators::microseconds_since(start);
  }
  comparators::print_json_line({"empty_call", "syncrun", "call", options.workers}, std::move(samples));
  session.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  return measure(comparators::parse_options(argc, argv));
}

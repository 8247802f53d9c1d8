// Measures Values on CPU devices:
// - chain: 1,000 calls that alternate between two workers. Each reads the last result (8 bytes). Time per call.
// - move: the values of an array from one worker to another, into memory that is warm.
// - memcpy: the same number of bytes in this process, from and to warm memory.
//
//   bench_values --seconds 2 --min-bytes 67108864 --max-bytes 1073741824

#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace {

constexpr int kCalls = 1000;

syncrun::Keep<double, 1> plus_one(syncrun::CpuWorker& worker, syncrun::Local<const double, 1> x) {
  syncrun::Keep<double, 1> y(worker, x.shape());
  y[0] = x[0] + 1;
  return y;
}
void touch(syncrun::Local<float, 1> x) { x[0] += 1; }

void measure_chain(syncrun::Session& session, double seconds) {
  const auto f = session.function(plus_one);
  const std::array on{f.on(session.device(0)), f.on(session.device(1))};
  const auto run = [&] {
    auto x = session.value(std::vector<double>{0}, syncrun::Shape{1}, session.device(0));
    const auto start = comparators::Clock::now();
    for (std::size_t i = 0; i < kCalls; ++i) x = on[i % 2](x);
    if (x.get()[0] != kCalls) throw std::runtime_error("the chain has a wrong result");
    return comparators::microseconds_since(start) / kCalls;
  };
  const double warm_us = run();
  std::vector<double> samples(static_cast<std::size_t>(comparators::iterations_for(seconds, warm_us * kCalls)));
  for (auto& sample : samples) sample = run();
  comparators::print_json_line({"chain", "syncrun", "call", 2}, std::move(samples));
}

void measure_move(syncrun::Session& session, std::size_t bytes, double seconds) {
  const auto source = session.device(0);
  const auto destination = session.device(1);
  const auto write = session.function(touch).on(source);
  const std::vector<float> values(bytes / sizeof(float), 1.0F);
  const auto x = session.value(values, syncrun::Shape{static_cast<std::int64_t>(values.size())}, source);
  const auto run = [&] {
    write(x);
    session.wait();
    const auto start = comparators::Clock::now();
    x.to(destination);
    session.synchronize(destination);
    return comparators::microseconds_since(start);
  };
  std::vector<float> copy(values.size());
  const auto run_memcpy = [&] {
    const auto start = comparators::Clock::now();
    std::memcpy(copy.data(), values.data(), bytes);
    return comparators::microseconds_since(start);
  };
  run();
  run_memcpy();
  const auto count = static_cast<std::size_t>(comparators::iterations_for(seconds / 2, run()));
  std::vector<double> moves(count);
  std::vector<double> copies(count);
  for (std::size_t i = 0; i < count; ++i) {  // side by side
    moves[i] = run();
    copies[i] = run_memcpy();
  }
  comparators::print_json_line({"move", "syncrun", "copy", 2, bytes}, std::move(moves));
  comparators::print_json_line({"move", "memcpy", "copy", 1, bytes}, std::move(copies));
}

int measure(const comparators::Options& options) {
  syncrun::Session session({.processes = "2"});
  measure_chain(session, options.seconds);
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4) {
    measure_move(session, bytes, options.seconds);
  }
  session.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  return measure(comparators::parse_options(argc, argv));
}

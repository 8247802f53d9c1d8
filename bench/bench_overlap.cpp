// Measures how well work on several CPU devices overlaps. The work of a device is a sleep.
// - cutorch_loop: 5 steps on 3 devices. In each step, every device works for 0.3 s, the first one adds up the results
//   and takes a step, and the others get a copy. The ideal time is 1.5 s.
// - elastic_averaging: a device with rounds of 100 ms and one with rounds of 10 ms, for 1.45 s. Prints their rounds.
//
//   bench_overlap

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace {

namespace sr = syncrun;
using namespace std::chrono_literals;

sr::Keep<double, 1> work(sr::CpuWorker& worker, sr::Local<const double, 1> params) {
  std::this_thread::sleep_for(300ms);
  sr::Keep<double, 1> gradient(worker, params.shape());
  for (std::int64_t i = 0; i < params.rows(); ++i) gradient[i] = params[i] - 1;
  return gradient;
}
void add(sr::Local<double, 1> sum, sr::Local<const double, 1> part) {
  for (std::int64_t i = 0; i < sum.rows(); ++i) sum[i] += part[i];
}
void sgd(sr::Local<double, 1> params, sr::Local<double, 1> sum) {
  for (std::int64_t i = 0; i < params.rows(); ++i) {
    params[i] -= 0.1 * sum[i];
    sum[i] = 0;
  }
}
void round_of(sr::Local<double, 1>, int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

void measure_loop() {
  sr::Session session({.processes = "3"});
  const std::vector<double> zeros(1000);
  const auto params = session.value(zeros, sr::Shape{1000}, session.device(0));
  const auto sum = session.value(zeros, sr::Shape{1000}, session.device(0));
  const auto f = session.function(work);
  const auto accumulate = session.function(add).on(session.device(0));
  const auto step = session.function(sgd).on(session.device(0));
  const auto start = comparators::Clock::now();
  for (int i = 0; i < 5; ++i) {
    std::vector<sr::Value<double, 1>> gradients;
    for (int rank = 0; rank < 3; ++rank) gradients.push_back(f.on(session.device(rank))(params));
    for (const auto& gradient : gradients) accumulate(sum, gradient);
    step(params, sum);
  }
  session.wait();
  std::printf("cutorch_loop: %.3f s\n", comparators::microseconds_since(start) / 1e6);
  session.close();
}

void measure_rounds() {
  sr::Session session({.processes = "2"});
  const auto center = session.value(std::vector<double>(1000), sr::Shape{1000}, session.device(0));
  const std::array devices{session.device(0), session.device(1)};
  const auto f = session.function(round_of);
  const auto begin = comparators::Clock::now();
  const auto start = [&](const sr::Round<double>& round) {
    return f.on(round.device).async(round.params, round.lane == 0 ? 100 : 10);
  };
  const auto after = [&](const sr::Round<double>&) { return comparators::microseconds_since(begin) < 1.45e6; };
  const auto report = sr::easgd(session, center, devices, start, after, {});
  std::printf("elastic_averaging: %lld and %lld rounds in %.2f s\n", static_cast<long long>(report.rounds[0]),
              static_cast<long long>(report.rounds[1]), comparators::microseconds_since(begin) / 1e6);
  session.close();
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  measure_loop();
  measure_rounds();
  return 0;
}

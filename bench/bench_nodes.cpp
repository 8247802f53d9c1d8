// Measures what crosses the network between nodes: an empty call, alone and with eight in flight, a fresh batch of
// 64 MiB, and an output of 16 MiB from each rank. run_nodes.py starts it on several hosts, in turn with comparators/mpi_nodes.
//
//   mpirun ... syncrun -n 2 bench_nodes

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <vector>

#include "syncrun/syncrun.hpp"

namespace {

namespace sr = syncrun;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void nothing() {}

/// Reads one element of each page, so that all rows have to be there.
sr::Sum<double> touch(sr::Scattered<const double, 2> x) {
  double sum = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) sum += x(row, 0);
  return {sum};
}

/// The median time of a call. Some calls before are not measured.
template <class Function>
double time_of(const Function& f, int calls) {
  for (int i = 0; i < std::max(1, calls / 10); ++i) f();
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto begin = Clock::now();
    f();
    times.push_back(microseconds_since(begin));
  }
  return median(std::move(times));
}

double eight_in_flight(sr::Session& session, int calls) {
  const auto f = session.function(nothing, "nothing");
  std::deque<sr::Future<void>> futures;
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) {
    if (futures.size() == 8) {
      futures.front().get();
      futures.pop_front();
    }
    futures.push_back(f.async());
  }
  for (auto& future : futures) future.get();
  return microseconds_since(begin) / calls;
}

double fresh_batch(sr::Session& session, int batches) {
  constexpr std::int64_t kWidth = 512, kRows = (std::int64_t{64} << 20) / 8 / kWidth;
  const auto f = session.function(touch, "touch");
  auto x = session.data(std::vector<double>(kRows * kWidth, 1), sr::Shape{kRows, kWidth}, "x");
  f(x);
  std::vector<double> times;
  for (int i = 0; i < batches; ++i) {
    {
      const auto guard = x.write();
    }  // all rows count as changed
    const auto begin = Clock::now();
    f(x);
    times.push_back(microseconds_since(begin));
  }
  return median(std::move(times));
}

sr::Sum<float, 1> return_16_mib() {
  constexpr std::size_t kElements = (std::size_t{16} << 20U) / sizeof(float);
  return {std::vector<float>(kElements, 1), sr::Shape{static_cast<std::int64_t>(kElements)}};
}

int program(sr::Session& session, int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 5000;
  if (argc > 2) {  // "start": only the first call
    session.function(nothing, "nothing")();
    std::printf("{}\n");
    return 0;
  }
  std::printf("{\"empty_call\": %.2f, \"eight_in_flight\": %.2f, \"fresh_batch\": %.2f, \"large_output\": %.2f}\n",
              time_of(session.function(nothing, "nothing"), calls), eight_in_flight(session, calls),
              fresh_batch(session, 20), time_of(session.function(return_16_mib, "return_16_mib"), 20));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

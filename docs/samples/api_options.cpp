// docs/api/options.md

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;
using namespace std::chrono_literals;

sr::Sum<double> total(sr::Scattered<const double, 1> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

sr::Sum<double> weighted(sr::Scattered<const double, 1> x, sr::Scattered<const double, 1> weights) {
  return std::inner_product(x.begin(), x.end(), weights.begin(), 0.0);
}

void program(sr::Session& session) {
  // [call]
  const auto x = session.data(std::vector<double>(100, 1.0));
  const auto f = session.function(total);

  std::vector<std::uint32_t> order(100);  // any integers
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const std::span batch = std::span(order).first(32);

  std::printf("%g\n", f(x, {.batch = batch, .slices = 2, .timeout = 30s}).value());
  // [/call]
  // [minibatch]
  const auto g = session.function(weighted);
  const auto weights = session.data(std::vector<double>(32, 0.5));  // of this batch, one per index
  std::printf("%g\n", g(x, sr::minibatch(weights), {.batch = batch}).value());
  std::printf("%g\n", f(x, {.batch = 10}).value());  // the first ten rows
  // [/minibatch]
}

// [session]
int main(int argc, char** argv) {
  return syncrun::run(argc, argv, program, {.processes = "2", .timeout = 1min, .seed = 7});
}
// [/session]

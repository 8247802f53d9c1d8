#pragma once

// What the benchmarks of LibTorch's models have in common: options with lists, and steps that follow each other without
// waiting.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace benchmark_steps {

constexpr int kSamples = 5;
constexpr int kWarmUpSteps = 8;

/// "a,b" as a list.
inline std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}
/// "32,8" as a list of numbers.
inline std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> values;
  for (const std::string& part : split(text)) values.push_back(std::atoll(part.c_str()));
  return values;
}

/// The microseconds per step of the samples, from the least to the most.
struct Times {
  double median;
  double least;
  double most;
};

/// Runs steps, two of them in flight, and returns the microseconds per step. `start()` starts one and returns its future.
template <class Start>
double run(Start&& start, int steps, double& last_loss) {
  const auto begin = std::chrono::steady_clock::now();
  auto flying = start();
  for (int i = 1; i < steps; ++i) {
    auto next = start();
    last_loss = flying.get();
    flying = std::move(next);
  }
  last_loss = flying.get();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / steps;
}

/// Warms up and then takes the samples, of `steps` steps each.
template <class Start>
Times measure(Start&& start, int steps, double& last_loss) {
  run(start, kWarmUpSteps, last_loss);
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(run(start, steps, last_loss));
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

}  // namespace benchmark_steps

#pragma once

// Code that the benchmarks on GPUs share with their comparators: sizes, and the JSON line that each prints for a
// measurement. bench/run_gpu.py compares lines with the same "bench", "devices" and "what".

#include <array>
#include <string>
#include <utility>

#include "bench/comparators/measure.hpp"

namespace comparators {

struct GpuMeasurement {
  const char* bench;
  const char* impl;
  int devices;
  std::string what;
  /// The bytes that all devices together move in one sample. 0 if there is no rate.
  std::size_t bytes = 0;
};

inline void print_gpu_line(const GpuMeasurement& measurement, std::vector<double> samples_us) {
  std::sort(samples_us.begin(), samples_us.end());
  const double median_us = percentile(samples_us, 50);
  std::printf("{\"bench\": \"%s\", \"impl\": \"%s\", \"devices\": %d, \"what\": \"%s\", ", measurement.bench,
              measurement.impl, measurement.devices, measurement.what.c_str());
  if (measurement.bytes != 0) {
    std::printf("\"gb_per_s\": %.3f, ", static_cast<double>(measurement.bytes) / median_us / 1e3);
  }
  std::printf("\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"samples\": %zu}\n", median_us,
              percentile(samples_us, 10), percentile(samples_us, 90), samples_us.size());
  std::fflush(stdout);
}

/// A size as text, for example "64 MiB" or "784 B".
inline std::string size_text(std::size_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + " " + kUnits[unit];
}

// ---- scatter --------------------------------------------------------------------------------------------------

/// The bytes that each device gets in a contiguous scatter.
inline constexpr std::array kScatterBytes{std::size_t{64} << 20U, std::size_t{256} << 20U};

inline std::string scatter_text(std::size_t bytes) { return size_text(bytes) + " per worker, contiguous"; }

/// The sizes of rows in a shuffled scatter: MNIST as bytes, MNIST as float32, and ImageNet as bytes. Each device gets
/// about 64 MiB. The rows are chosen from twice as many, each at most once.
inline constexpr std::array<std::size_t, 3> kShuffledRowBytes{784, 3136, 150528};
inline constexpr std::size_t kShuffledBytes = std::size_t{64} << 20U;
inline constexpr std::size_t kShuffledPoolFactor = 2;
/// Fewer iterations than iterations_for gives, because a new random list of indices takes longer to make than to use.
inline constexpr long kMaxShuffledIterations = 60;

inline std::string shuffled_text(std::size_t row_bytes) { return std::to_string(row_bytes) + " B rows, shuffled"; }

// ---- all_reduce -----------------------------------------------------------------------------------------------

inline constexpr std::array<std::size_t, 10> kAllReduceBytes{
    std::size_t{1} << 10U,   std::size_t{16} << 10U, std::size_t{64} << 10U, std::size_t{256} << 10U,
    std::size_t{1} << 20U,   std::size_t{4} << 20U,  std::size_t{16} << 20U, std::size_t{32} << 20U,
    std::size_t{256} << 20U, std::size_t{1} << 30U};

/// How many all_reduces of this size one timed sequence contains. They take more than a millisecond on any machine, so
/// the time to start the sequence does not matter.
constexpr int all_reduce_repeats(std::size_t bytes) noexcept {
  if (bytes <= (std::size_t{256} << 10U)) return 250;
  if (bytes <= (std::size_t{4} << 20U)) return 100;
  if (bytes <= (std::size_t{32} << 20U)) return 25;
  return bytes <= (std::size_t{256} << 20U) ? 6 : 3;
}

/// The values before the first all_reduce. They are the same on every rank, so that the sum over the ranks is known.
/// Repeated sums in place grow until they are infinite. An addition costs the same then.
inline std::vector<float> all_reduce_values(std::size_t bytes) {
  std::vector<float> values(bytes / sizeof(float));
  fill(values, 0);
  return values;
}

/// Throws unless the values are the sum over `devices` ranks of all_reduce_values.
template <class Values>
void require_all_reduced(const Values& values, std::size_t elements, int devices) {
  constexpr std::size_t kStride = 61;  // coprime to the pattern's period
  for (std::size_t i = 0; i < elements; i += kStride) {
    if (values[i] != initial_value(0, i) * static_cast<float>(devices)) {
      throw std::runtime_error("all_reduce gave a wrong sum");
    }
  }
}

inline std::string all_reduce_text(std::size_t bytes, const char* form) { return size_text(bytes) + ", " + form; }

}  // namespace comparators

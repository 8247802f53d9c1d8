#pragma once

// Code that all comparators share: the options, the number of samples, and the JSON line that they print.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace comparators {

using Clock = std::chrono::steady_clock;

struct Options {
  std::size_t workers = 2;
  /// The time to spend in each timed loop after the warm-up.
  double seconds = 0.5;
  std::size_t min_bytes = std::size_t{1} << 10;
  std::size_t max_bytes = std::size_t{64} << 20;
  /// The GPUs are divided among as many nodes, all on this machine. NCCL connects nodes by the network.
  std::size_t nodes = 1;
  /// If not empty, these sizes count and not the two above.
  std::vector<std::size_t> chosen_bytes;

  /// The sizes to measure. Without a choice, these are the smallest one times powers of four, up to the largest one.
  std::vector<std::size_t> sizes() const {
    if (!chosen_bytes.empty()) return chosen_bytes;
    std::vector<std::size_t> all;
    for (std::size_t bytes = min_bytes; bytes <= max_bytes; bytes *= 4) all.push_back(bytes);
    return all;
  }
};

/// "8,1024"
inline std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    sizes.push_back(std::stoul(text.substr(begin, end - begin)));
    if (sizes.back() < sizeof(float)) throw std::invalid_argument("--sizes must be at least 4");
  }
  return sizes;
}

/// Reads `--workers N --seconds S --min-bytes B --max-bytes B --nodes N --sizes B,B,...`. Throws
/// std::invalid_argument for anything else.
inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(std::string(flag) + ": value missing");
    const std::string value = argv[i + 1];
    if (flag == "--workers") {
      options.workers = std::stoul(value);
    } else if (flag == "--seconds") {
      options.seconds = std::stod(value);
    } else if (flag == "--min-bytes") {
      options.min_bytes = std::stoul(value);
    } else if (flag == "--max-bytes") {
      options.max_bytes = std::stoul(value);
    } else if (flag == "--nodes") {
      options.nodes = std::stoul(value);
    } else if (flag == "--sizes") {
      options.chosen_bytes = parse_sizes(value);
    } else {
      throw std::invalid_argument("unknown option " + std::string(flag));
    }
  }
  if (options.workers == 0 || options.min_bytes < sizeof(float)) {
    throw std::invalid_argument("--workers must be at least 1 and --min-bytes at least 4");
  }
  return options;
}

inline double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// How many iterations take `seconds`, if one takes `warm_us` after the warm-up. At least 10, for a meaningful median,
/// and at most 200,000, to limit the number of samples.
inline long iterations_for(double seconds, double warm_us) {
  return std::lround(std::clamp(seconds * 1e6 / std::max(warm_us, 0.01), 10.0, 200000.0));
}

/// The nearest-rank percentile of sorted samples.
inline double percentile(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<std::size_t>(std::ceil(p / 100.0 * static_cast<double>(sorted.size())));
  return sorted.at(std::max<std::size_t>(rank, 1) - 1);
}

struct Measurement {
  const char* name;
  const char* impl;
  const char* variant;
  std::size_t workers;
  /// 0 if the benchmark has no size (empty_call).
  std::size_t bytes = 0;
};

inline void print_json_line(const Measurement& what, std::vector<double> samples_us) {
  const double mean_us =
      std::accumulate(samples_us.begin(), samples_us.end(), 0.0) / static_cast<double>(samples_us.size());
  std::sort(samples_us.begin(), samples_us.end());
  std::printf("{\"name\": \"%s\", \"impl\": \"%s\", \"variant\": \"%s\", \"workers\": %zu, ", what.name, what.impl,
              what.variant, what.workers);
  if (what.bytes != 0) std::printf("\"bytes\": %zu, ", what.bytes);
  std::printf("\"median_us\": %.3f, \"mean_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"samples\": %zu}\n",
              percentile(samples_us, 50), mean_us, percentile(samples_us, 10), percentile(samples_us, 90),
              samples_us.size());
  std::fflush(stdout);
}

/// The value of a rank before the first all_reduce. Sums of small integers are exact, so the result of one all_reduce
/// can be checked exactly. The timed iterations run in place, so the values grow until they are infinite. An addition
/// costs the same then.
inline float initial_value(std::size_t rank, std::size_t element) { return static_cast<float>(rank + 1 + element % 7); }

inline void fill(std::vector<float>& values, std::size_t rank) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial_value(rank, i);
}

/// Throws if `values` does not contain the sum over all ranks.
inline void require_sum(const std::vector<float>& values, std::size_t workers) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    float expected = 0;
    for (std::size_t rank = 0; rank < workers; ++rank) expected += initial_value(rank, i);
    if (values[i] != expected) throw std::runtime_error("all_reduce gave a wrong sum");
  }
}

}  // namespace comparators

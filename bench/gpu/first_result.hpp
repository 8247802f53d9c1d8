#pragma once

// When a program has its first result, on the clock that whoever started it can read too (CLOCK_MONOTONIC).

#include <chrono>
#include <cstdio>

namespace bench {

inline void print_first_result(int devices, const char* what) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf(
      "{\"bench\": \"gpu_launch\", \"impl\": \"syncrun\", \"devices\": %d, \"what\": \"%s\", \"result_at_ns\": %lld}\n",
      devices, what, static_cast<long long>(std::chrono::nanoseconds(now).count()));
  std::fflush(stdout);
}

}  // namespace bench

#pragma once

// Prints the time at which a program has its first result. The clock is CLOCK_MONOTONIC, which the process that started
// the program can read too.

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

#include "common/os/sign_of_life.hpp"

#include <cerrno>
#include <ctime>

#include "common/text/errors.hpp"

namespace syncrun::detail::os {

namespace {
void check(int code, const char* what) {
  if (code != 0) text::throw_errno(what, code);
}

/// The time 100 ms from now. A watcher checks its stop flag this often. A death wakes it at once.
timespec after_a_lap() noexcept {
  constexpr long kLapNs = 100'000'000;
  constexpr long kSecondNs = 1'000'000'000;
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  time.tv_nsec += kLapNs;
  if (time.tv_nsec >= kSecondNs) {
    time.tv_nsec -= kSecondNs;
    ++time.tv_sec;
  }
  return time;
}
}  // namespace

void initialise_life(pthread_mutex_t& life) {
  pthread_mutexattr_t attributes;
  check(::pthread_mutexattr_init(&attributes), "pthread_mutexattr_init");
  int code = ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (code == 0) code = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (code == 0) code = ::pthread_mutex_init(&life, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  check(code, "cannot make a robust mutex");
}

void hold_life(pthread_mutex_t& life) { check(::pthread_mutex_lock(&life), "cannot take the worker's sign of life"); }

bool await_death(pthread_mutex_t& life, const std::atomic<bool>& stops) {
  int code = ETIMEDOUT;
  while (code == ETIMEDOUT) {
    if (stops.load()) return false;
    const timespec lap_end = after_a_lap();
    code = ::pthread_mutex_clocklock(&life, CLOCK_MONOTONIC, &lap_end);
  }
  // This thread keeps the mutex locked, and the kernel releases it when the thread ends. No other thread locks it
  // again. (The thread sanitizer of GCC 12 reports an error if a thread unlocks what pthread_mutex_clocklock has
  // locked.)
  return true;
}

}  // namespace syncrun::detail::os

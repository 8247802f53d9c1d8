#include "common/os/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "common/os/control_group.hpp"
#include "common/os/core_set.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace syncrun::detail::os {

// std::atomic::wait does not work here: libstdc++ uses a process-private futex, which does not wake another process.
void Doorbell::wake() noexcept {
  rings.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::sleep(std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
  if (limit.count() <= 0) return yield_core();
  const timespec timeout{static_cast<time_t>(limit.count() / 1'000'000'000),
                         static_cast<long>(limit.count() % 1'000'000'000)};
  ::syscall(SYS_futex, &rings, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

int usable_cores() noexcept {
  static const int granted = cores_granted();
  const auto allowed = CoreSet::allowed();
  return std::min(granted, allowed ? allowed->count() : machine_cores());
}

int machine_cores() noexcept { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

void pause_briefly() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

void yield_core() noexcept { ::sched_yield(); }

}  // namespace syncrun::detail::os

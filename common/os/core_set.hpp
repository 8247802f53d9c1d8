#pragma once

// Sets of cores as the system takes them, on machines with any number of cores.

#include <sched.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace syncrun::detail::os {

/// cpu_set_t has room for 1,024 cores, and the kernel refuses to answer if the machine may have more. This set grows.
class CoreSet {
 public:
  /// As sched_getaffinity(). Tests use one of their own.
  using Ask = int (*)(pid_t, std::size_t, cpu_set_t*);

  explicit CoreSet(std::span<const int> cores);
  /// The cores that the calling thread, or the process `pid`, is bound to. Empty if the system does not say it.
  static std::optional<CoreSet> allowed(Ask ask = ::sched_getaffinity, pid_t pid = 0);

  /// In ascending order.
  std::vector<int> cores() const;
  int count() const noexcept;
  /// The set in the form of the system: the bit N stands for the core N.
  const cpu_set_t* bits() const noexcept { return words_.data(); }
  std::size_t bytes() const noexcept { return words_.size() * sizeof(cpu_set_t); }
  /// Binds the calling thread. Makes one system call and nothing else, so a child may call it between fork and exec.
  bool bind() const noexcept;

 private:
  CoreSet() = default;

  std::vector<cpu_set_t> words_{cpu_set_t{}};
};

}  // namespace syncrun::detail::os

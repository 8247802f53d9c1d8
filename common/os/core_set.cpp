#include "common/os/core_set.hpp"

#include <cerrno>

namespace syncrun::detail::os {

namespace {

/// The most cores that are asked for. The kernel's own limit is 8,192.
constexpr std::size_t kMostCores = 65536;

}  // namespace

CoreSet::CoreSet(std::span<const int> cores) {
  for (const int core : cores) {
    const std::size_t words = static_cast<std::size_t>(core) / CPU_SETSIZE + 1;
    if (words > words_.size()) words_.resize(words);
    CPU_SET_S(static_cast<std::size_t>(core), bytes(), words_.data());
  }
}

std::optional<CoreSet> CoreSet::allowed(Ask ask, pid_t pid) {
  CoreSet set;
  for (; set.words_.size() <= kMostCores / CPU_SETSIZE; set.words_.resize(2 * set.words_.size())) {
    if (ask(pid, set.bytes(), set.words_.data()) == 0) return set;
    if (errno != EINVAL) break;  // EINVAL: the machine may have more cores
  }
  return std::nullopt;
}

std::vector<int> CoreSet::cores() const {
  std::vector<int> cores;
  for (std::size_t core = 0; core < words_.size() * CPU_SETSIZE; ++core) {
    if (CPU_ISSET_S(core, bytes(), words_.data())) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

int CoreSet::count() const noexcept { return CPU_COUNT_S(bytes(), words_.data()); }

bool CoreSet::bind() const noexcept { return ::sched_setaffinity(0, bytes(), words_.data()) == 0; }

}  // namespace syncrun::detail::os

#include "master/process/resident_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "common/os/kernel_file.hpp"

namespace syncrun::detail::master::process {

/// The second number in /proc/PID/statm is that of pages in memory.
std::uint64_t resident_bytes(int pid) noexcept {
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/statm", pid);
  std::array<char, 128> text;
  const std::string_view numbers = os::read_kernel_file(path.data(), text);
  const auto second = numbers.substr(std::min(numbers.find(' ') + 1, numbers.size()));
  std::uint64_t pages = 0;
  std::from_chars(second.data(), second.data() + second.size(), pages);
  return pages * page_bytes;
}

}  // namespace syncrun::detail::master::process

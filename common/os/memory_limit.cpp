#include "common/os/memory_limit.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "common/os/control_group.hpp"
#include "common/os/environment.hpp"
#include "common/os/kernel_file.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::os {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::optional<std::int64_t> read_number(const std::string& path) {
  std::istringstream file(kernel_file(path));
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // missing, or "max"
}

/// Reads the value from the line "name value" of a file. Returns -1 if there is none. Ignores a unit behind the value:
/// the caller has to know that MemAvailable is in kB.
std::int64_t read_field(const std::string& path, std::string_view name) {
  std::istringstream file(kernel_file(path));
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    std::istringstream words(line.substr(name.size()));
    std::int64_t value = 0;
    if (words >> value) return value;
  }
  return -1;
}

std::optional<std::int64_t> limit_of(const std::string& folder, bool is_v2) {
  return read_number(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
}

/// The bytes left in the control groups of this process, where the least is left.
std::int64_t left_in_control_groups() {
  std::int64_t left = kUnlimited;
  for (const auto& [folder, is_v2] : control_groups("memory")) {
    const auto limit = limit_of(folder, is_v2);
    const auto used = read_number(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used) continue;
    const std::int64_t cached = std::max<std::int64_t>(0, read_field(folder + "/memory.stat", "inactive_file "));
    left = std::min(left, std::max<std::int64_t>(0, *limit - *used + cached));
  }
  return left;
}

}  // namespace

std::int64_t available_memory_bytes() {
  const std::int64_t machine_kib = read_field("/proc/meminfo", "MemAvailable:");
  const std::int64_t machine = machine_kib < 0 ? kUnlimited : machine_kib * 1024;
  return std::min(machine, left_in_control_groups());
}

std::int64_t granted_memory_bytes() {
  const std::int64_t machine_kib = read_field("/proc/meminfo", "MemTotal:");
  std::int64_t granted = machine_kib < 0 ? kUnlimited : machine_kib * 1024;
  for (const auto& [folder, is_v2] : control_groups("memory"))
    granted = std::min(granted, limit_of(folder, is_v2).value_or(kUnlimited));
  return granted;
}

bool is_memory_checked() { return environment::switch_in(environment::kMemoryCheck).value_or(true); }

namespace {

/// `more` is a part of the message, with a comma before it, or empty.
void check(std::uint64_t bytes, std::uint64_t spare, std::string_view what, std::string_view kind,
           const std::string& more) {
  if (!is_memory_checked()) return;
  const std::int64_t available = available_memory_bytes();
  if (bytes - std::min(bytes, spare) <= static_cast<std::uint64_t>(available)) return;
  throw Error(ErrorKind::system,
              std::string(what) + " requires " + std::to_string(bytes) + " bytes of " + std::string(kind) + "; " +
                  std::to_string(available) + " bytes are available on this machine or in this control group" + more +
                  " (" + environment::kMemoryCheck + "=off turns this check off)",
              ENOMEM);
}

}  // namespace

void check_memory_available(std::uint64_t bytes, std::string_view what, std::string_view kind) {
  check(bytes, 0, what, kind, "");
}

void check_memory_available(std::uint64_t bytes, std::uint64_t spare, std::string_view what) {
  check(bytes, spare, what, "shared memory",
        ", and " + std::to_string(spare) + " bytes of copies that are valid elsewhere can be dropped");
}

}  // namespace syncrun::detail::os

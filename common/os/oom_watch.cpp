#include "common/os/oom_watch.hpp"

#include <fstream>
#include <sstream>

#include "common/os/control_group.hpp"
#include "common/os/kernel_file.hpp"

namespace syncrun::detail::os {

namespace {

std::optional<std::int64_t> number_in(const std::string& path) {
  std::istringstream file(kernel_file(path));
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // missing, or "max"
}

bool is_readable(const std::string& path) { return std::ifstream(path).good(); }

}  // namespace

OomWatch::OomWatch(const Places& places) {
  // Without a limit, version 1 shows a number that is larger than any machine's memory.
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60U;
  std::int64_t least = kNoLimit;
  for (const auto& [folder, is_v2] : control_groups("memory", {places.membership, places.groups})) {
    const std::string counter = folder + (is_v2 ? "/memory.events" : "/memory.oom_control");
    // The group of the process counts its kills, also those for lack of memory in a group that contains it.
    if (counter_.empty() && is_readable(counter)) counter_ = counter;
    const std::string limit = folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes");
    const std::int64_t bytes = number_in(limit).value_or(kNoLimit);
    if (counter_.empty() || bytes >= least) continue;
    least = bytes;
    limit_ = limit;
    usage_ = folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes");
  }
  if (counter_.empty()) counter_ = places.machine;
  before_ = kills().value_or(0);
}

/// All three files contain the count as "oom_kill N".
std::optional<std::int64_t> OomWatch::kills() const {
  std::istringstream file(kernel_file(counter_));
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

std::string OomWatch::describe_kill() const {
  if (kills().value_or(0) <= before_) return {};
  const std::string probably = ", probably by the out-of-memory killer: ";
  const auto limit = limit_.empty() ? std::nullopt : number_in(limit_);
  if (!limit) return probably + "the machine's memory was used up";
  const auto usage = number_in(usage_);
  return probably + "the control group's limit is " + std::to_string(*limit) + " bytes" +
         (usage ? ", and " + std::to_string(*usage) + " are in use now" : "");
}

}  // namespace syncrun::detail::os

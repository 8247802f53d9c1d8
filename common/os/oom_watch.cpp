#include "common/os/oom_watch.hpp"

#include <fstream>

namespace syncrun::detail {

namespace {

/// The path of this process's group: "0::/path" (v2), or the line of v1's memory controller.
std::optional<std::string> group_in(const std::string& membership, bool is_v2) {
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {
    const auto second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos) continue;
    const bool is_it = is_v2 ? line.starts_with("0::") : line.find(":memory:") != std::string::npos;
    if (is_it) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // missing, or "max"
}

bool is_readable(const std::string& path) { return std::ifstream(path).good(); }

}  // namespace

OomWatch::OomWatch(const Places& places) {
  for (const bool is_v2 : {true, false}) {
    const auto group = group_in(places.membership, is_v2);
    if (!group) continue;
    const std::string root = places.groups + (is_v2 ? "" : "/memory");
    // In a container, the group of this process may be mounted as the root of the hierarchy.
    for (const std::string& folder : {root + (*group == "/" ? "" : *group), root}) {
      const std::string counter = folder + (is_v2 ? "/memory.events" : "/memory.oom_control");
      if (!is_readable(counter)) continue;
      counter_ = counter;
      limit_ = folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes");
      usage_ = folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes");
      before_ = kills().value_or(0);
      return;
    }
  }
  counter_ = places.machine;
  before_ = kills().value_or(0);
}

/// All three files contain the count as "oom_kill N".
std::optional<std::int64_t> OomWatch::kills() const {
  std::ifstream file(counter_);
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

}  // namespace syncrun::detail

#include "master/profile/profile_json.hpp"

#include "common/text/visible_text.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::profile {

namespace {

std::string number(const char* name, std::int64_t value) {
  return '"' + std::string(name) + "\": " + std::to_string(value);
}

std::string phase_json(const char* name, const PhaseTimes& times) {
  return ", \"" + std::string(name) + "\": {" + number("median_ns", times.median.count()) + ", " +
         number("max_ns", times.max.count()) + ", " + number("total_ns", times.total.count()) + "}";
}

std::string line_json(const CallProfile& line) {
  std::string text =
      "{" + number("rank", line.rank) + ", " + number("calls", line.calls) + phase_json("whole", line.whole);
  if (line.rank < 0) return text + "}";
  return text + phase_json("inputs", line.inputs) + phase_json("function", line.function) +
         phase_json("collective", line.collective) + phase_json("waiting", line.waiting) +
         phase_json("reduction", line.reduction) + "}";
}

}  // namespace

std::string profile_json(std::span<const CallProfile> calls, const std::vector<std::string>& devices,
                         const Coverage& coverage, std::uint64_t lost_events) {
  std::string text = "{" + number("syncrun_profile", kProfileForm) + ", \"version\": \"" + version() + "\",\n " +
                     number("elapsed_ns", coverage.elapsed_ns()) + ", " + number("busy_ns", coverage.covered_ns()) +
                     ", " + number("calls_ns", coverage.sum_ns()) + ", " +
                     number("lost_events", static_cast<std::int64_t>(lost_events)) + ",\n \"devices\": [";
  const char* separator = "";
  for (const std::string& device : devices) {
    text += separator + text::json_string(device);
    separator = ", ";
  }
  text += "],\n \"functions\": [";
  const std::string* name = nullptr;
  for (const CallProfile& line : calls) {
    const bool is_next = name != nullptr && *name == line.name;
    if (is_next) text += ",\n   ";
    else
      text += std::string(name == nullptr ? "" : "]},") + "\n  {\"name\": " + text::json_string(line.name) +
              ", \"lines\": [\n   ";
    text += line_json(line);
    name = &line.name;
  }
  return text + (name == nullptr ? "" : "]}") + "]}\n";
}

}  // namespace syncrun::detail::master::profile

#pragma once

// What a check of `syncrun doctor` has found.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace syncrun::detail::master::doctor {

enum class Level : std::uint8_t {
  ok,
  note,     ///< Good to know. Jobs run without a change.
  warning,  ///< It works, but slowly or not with everything.
  wrong,    ///< Jobs fail. The exit code is 1.
};

constexpr std::string_view to_string(Level level) noexcept {
  switch (level) {
    case Level::ok: return "ok";
    case Level::note: return "note";
    case Level::warning: return "warning";
    case Level::wrong: return "wrong";
  }
  return "";
}

struct Finding {
  Level level = Level::ok;
  std::string what;      ///< The thing that was looked at: "memory limit".
  std::string value;     ///< What was found there, with its unit.
  std::string advice{};  ///< What to do. Empty only for `ok`.
};

struct Section {
  std::string name;  ///< "limits"
  std::vector<Finding> findings;
};

inline std::size_t count_of(const std::vector<Section>& sections, Level level) {
  std::size_t count = 0;
  for (const Section& section : sections) {
    count += static_cast<std::size_t>(std::count_if(section.findings.begin(), section.findings.end(),
                                                    [level](const Finding& each) { return each.level == level; }));
  }
  return count;
}

}  // namespace syncrun::detail::master::doctor

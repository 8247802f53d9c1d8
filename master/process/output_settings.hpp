#pragma once

// What the user wants of the output of workers: what stands before a line, and which ranks are shown and have files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/text/rank_list.hpp"

namespace syncrun::detail::master::process {

/// How large a log file may become, and how many older ones are kept.
struct LogLimit {
  std::uint64_t bytes = 0;  // 0: no limit
  int old_files = 3;
};

struct OutputSettings {
  bool has_tags = true;
  bool has_times = false;
  bool is_json_log = false;
  text::RankList shown = text::RankList::all();   // the ranks whose lines are shown
  text::RankList logged = text::RankList::all();  // if there is a log folder: the ranks that have a file there
  text::RankList only_logged{};                   // the ranks whose lines are in their files only
  LogLimit log_limit{};

  bool shows(int rank) const noexcept { return shown.has(rank) && !only_logged.has(rank); }
  bool logs(int rank) const noexcept { return logged.has(rank) || only_logged.has(rank); }
};

/// Reads the variables that `syncrun` sets. Throws Error (usage) with the name of a variable that has a bad value.
OutputSettings output_from_environment();

/// Throws Error (usage) unless the session has all ranks that the lists name, and a log folder if one is needed.
void check_output(const OutputSettings& settings, int world_size, bool has_log_folder);

/// "100M", or "100M:5" with a number of old files. Empty if the text has another form.
std::optional<LogLimit> parse_log_limit(std::string_view text) noexcept;
inline constexpr const char* kLogLimitForm =
    "a size such as 500K, 100M or 2G, and perhaps a number of old files: 100M:5";

}  // namespace syncrun::detail::master::process

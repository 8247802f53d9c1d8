#pragma once

// Lists in the options of `syncrun --launcher`: the hosts of a job, and further words for an engine.

#include <string>
#include <vector>

namespace syncrun::detail::master::command_line {

// `option` is for messages. All throw Error (usage).

/// The hosts in "a,b,c".
std::vector<std::string> hosts_in_list(const std::string& option, const std::string& list);

/// The hosts in a file: the first word of each line, up to a colon. What follows (slots=8, :8) counts processes, of which each
/// host gets one. Comments begin with #.
std::vector<std::string> hosts_in_file(const std::string& option, const std::string& path);

/// Divides a line into words, as a shell does: quotes keep words together.
std::vector<std::string> words_for_launcher(const std::string& option, const std::string& line);

}  // namespace syncrun::detail::master::command_line

#pragma once

// The words after `syncrun top` and the others.

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace syncrun::detail::master::inspect {

struct Words {
  std::optional<int> pid;                    ///< --pid PID
  bool is_once = false;                      ///< --once
  std::chrono::milliseconds interval{1000};  ///< --interval SECONDS
  std::vector<std::string> others;           ///< The words without a dash before them, and all words after "--".
};

/// `command` is the name of the subcommand, for messages, and `options` are those that it has, such as "--pid". Throws
/// Error (usage).
Words read_words(const std::string& command, std::span<char* const> words, std::span<const std::string_view> options);

}  // namespace syncrun::detail::master::inspect

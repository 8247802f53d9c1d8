#pragma once

// What `syncrun help TOPIC` prints. The man page contains the topics too. Each topic is a row of one table.

#include <span>
#include <string>
#include <string_view>

namespace syncrun::detail::master::command_line {

struct HelpTopic {
  std::string_view name;
  std::string_view text;  ///< Paragraphs. Lines have at most 100 characters and end with a newline.
  std::string_view page;  ///< The page that says more, relative to the folder of the pages.
  std::string (*list)();  ///< Lines that follow the text, made from another table. May be null.
};

/// In alphabetical order.
std::span<const HelpTopic> help_topics() noexcept;

/// The names of all topics: "devices, environment, ...".
std::string names_of_topics();

/// A topic as `syncrun help TOPIC` prints it, with the path of its page. Throws Error (usage) for an unknown topic.
std::string help_on_topic(std::string_view name);

/// The codes with which `syncrun` exits. Ends with a newline.
extern const std::string_view kExitCodes;

}  // namespace syncrun::detail::master::command_line

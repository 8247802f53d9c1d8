#pragma once

// Text of others on a terminal: what would move its cursor, clear it or change its state is shown, and not done.

#include <string>
#include <string_view>

namespace syncrun::detail {

/// The text with each control character but newline and tab in caret notation (`^[` for escape, as cat -v has it), and each
/// byte that is not UTF-8, and each C1 control, as `\x9b`.
std::string visible(std::string_view text);

/// Each line after the first is indented by two spaces, unless it is already: text of several lines that others may have
/// written into looks like one story, and none of its lines begins like a worker's.
std::string with_indented_lines(std::string_view text);

/// How text of others is written to a descriptor: visible if that is a terminal, else as it is.
std::string text_for(int fd, std::string_view text);

}  // namespace syncrun::detail

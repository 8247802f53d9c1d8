#pragma once

// Makes text of other programs safe for a terminal. Characters that would move the cursor, clear the screen or change
// the state of the terminal are shown as visible text instead.

#include <string>
#include <string_view>

namespace syncrun::detail::text {

/// Returns the text with its control characters in a visible form. Newline and tab stay as they are. Other control
/// characters are in caret notation, as `cat -v` writes them (`^[` for escape). C1 controls, and bytes that are not
/// UTF-8, are in hexadecimal (`\x9b`).
std::string visible(std::string_view text);

/// Indents each line after the first by two spaces, unless it is indented already. So a text of several lines is
/// recognisable as one message, and none of its lines looks like an output line of a worker.
std::string with_indented_lines(std::string_view text);

/// The text as a string of JSON, in quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);
/// The same without the quotes.
std::string json_escaped(std::string_view text);

/// The text of another program, for output to `fd`: visible(text) if that is a terminal, otherwise unchanged.
std::string text_for(int fd, std::string_view text);

}  // namespace syncrun::detail::text

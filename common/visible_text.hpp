#pragma once

// Text of others on a terminal: what would move its cursor, clear it or change its state is shown, and not done.

#include <string>
#include <string_view>

namespace syncrun::detail {

/// The text with each control character but newline and tab in caret notation (`^[` for escape, as cat -v has it), and each
/// byte that is not UTF-8, and each C1 control, as `\x9b`.
std::string visible(std::string_view text);

/// How text of others is written to a descriptor: visible if that is a terminal, else as it is.
std::string text_for(int fd, std::string_view text);

}  // namespace syncrun::detail

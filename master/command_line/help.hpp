#pragma once

// What `syncrun --help` prints.

#include <string>

namespace syncrun::detail::master::command_line {

std::string help_text();

}  // namespace syncrun::detail::master::command_line

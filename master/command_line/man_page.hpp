#pragma once

// The man page syncrun(1), made from the tables of options, subcommands and topics.

#include <string>

namespace syncrun::detail::master::command_line {

/// In roff, with the macros of man(7).
std::string man_page();

}  // namespace syncrun::detail::master::command_line

#include "master/command_line/help.hpp"

#include <algorithm>

#include "master/command_line/help_topics.hpp"
#include "master/command_line/option_table.hpp"
#include "master/command_line/subcommands.hpp"

namespace syncrun::detail::master::command_line {

namespace {

constexpr std::size_t kColumn = 39;

std::string usage_of(const Subcommand& command) {
  std::string text = "       syncrun ";
  text.append(command.name).append(command.arguments.empty() ? "" : " ").append(command.arguments);
  if (text.size() >= kColumn) text += '\n';
  text.resize(text.ends_with('\n') ? text.size() + kColumn : kColumn, ' ');
  return text.append(command.help) + '\n';
}

/// The lines of one option in --help.
std::string help_on(const OptionRow& row) {
  std::string text = row.letter != 0 ? std::string("  -") + row.letter + ", --" : "      --";
  text += row.name;
  if (row.value != nullptr) text += std::string(" ") + row.value;
  text.resize(std::max(kColumn, text.size() + 1), ' ');
  for (const char c : row.help) {
    text += c;
    if (c == '\n') text.append(kColumn, ' ');
  }
  return text + '\n';
}

}  // namespace

std::string help_text() {
  std::string text = "usage: syncrun [options] [--] program [arguments]\n";
  for (const Subcommand& each : subcommands()) {
    if (!each.help.empty()) text += usage_of(each);
  }
  text += R"(
Runs a Syncrun program with one worker per device, ends the whole job with it, and says why it failed.
On several nodes: syncrun --launcher auto --nodes NODES program, or syncrun --hosts a,b,c program.

)";
  for (const OptionRow& row : option_table()) text += help_on(row);
  text += '\n';
  text += kExitCodes;
  text += R"(
Examples:
  syncrun -n 4 ./program --its own options          four workers
  syncrun --timeout 10 --log-dir logs ./program     say after 10 s who hangs; one file for each worker

Topics of `syncrun help TOPIC`: )";
  text += names_of_topics();
  return text + R"(.
The pages are in share/doc/syncrun of the installation, and in the sources of Syncrun. They begin at README.md.
)";
}

}  // namespace syncrun::detail::master::command_line

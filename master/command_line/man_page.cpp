#include "master/command_line/man_page.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "master/command_line/help_topics.hpp"
#include "master/command_line/option_table.hpp"
#include "master/command_line/subcommands.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// Text in which roff finds no commands.
std::string literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + literal(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + literal(text) + "\\fR"; }

/// A paragraph with a hanging tag. `tag` is roff already.
std::string tagged(const std::string& tag, std::string_view text) {
  return ".TP\n" + tag + '\n' + literal(text) + '\n';
}

std::string section(std::string_view name) {
  std::string title;
  for (const char c : name) title += c == '-' ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return ".SH " + title + '\n';
}

std::string entry_of(const OptionRow& row) {
  std::string tag = row.letter != 0 ? bold(std::string("-") + row.letter) + ", " : "";
  tag += bold(std::string("--") + row.name);
  if (row.value != nullptr) tag += ' ' + italic(row.value);
  return tagged(tag, row.help);
}

std::string entry_of(const Subcommand& each) {
  std::string tag = bold("syncrun " + std::string(each.name));
  if (!each.arguments.empty()) tag += ' ' + italic(each.arguments);
  return tagged(tag, each.help);
}

/// Paragraphs are filled. Those that begin with a space are commands or tables, whose lines stay as they are.
std::string paragraphs(std::string_view text) {
  std::string out;
  bool is_first = true;
  while (!text.empty()) {
    const auto end = text.find("\n\n");
    const std::string_view paragraph = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 2);
    std::string lines = literal(paragraph);
    if (lines.ends_with('\n')) lines.pop_back();
    if (lines.empty()) continue;
    if (!is_first) out += ".PP\n";
    out += paragraph.starts_with(' ') ? ".nf\n" + lines + "\n.fi\n" : lines + '\n';
    is_first = false;
  }
  return out;
}

std::string pages_by_topic() {
  constexpr std::size_t kColumn = 18;
  std::string lines;
  for (const HelpTopic& each : help_topics()) {
    std::string line = "  " + std::string(each.name);
    line.resize(std::max(kColumn, line.size() + 1), ' ');
    lines += literal(line.append(each.page)) + '\n';
  }
  return lines;
}

}  // namespace

std::string man_page() {
  // There is no date: two builds give the same page.
  std::string page = std::string(".TH SYNCRUN 1 \"\" \"Syncrun ") + version() + "\" \"User Commands\"\n";
  page += section("name") + "syncrun \\- run a serial program with one worker per device\n";
  page += section("synopsis") + bold("syncrun") + " [" + italic("options") + "] [\\-\\-] " + italic("program") + " [" +
          italic("arguments") + "]\n";
  page += section("description") +
          "Runs a Syncrun program with one worker per device, ends the whole job with it, and says why it failed.\n";
  page += section("options");
  for (const OptionRow& row : option_table()) page += entry_of(row);
  page += section("commands") + "In place of running a program, syncrun does this.\n";
  for (const Subcommand& each : subcommands()) {
    if (!each.help.empty()) page += entry_of(each);
  }
  for (const HelpTopic& each : help_topics()) {
    page += section(each.name) + paragraphs(std::string(each.text) + (each.list != nullptr ? each.list() : ""));
  }
  page += section("see-also") +
          "The pages of Syncrun are in share/doc/syncrun where it is installed, usually in /usr.\n"
          "These pages say more about the sections above:\n";
  return page + ".PP\n.nf\n" + pages_by_topic() + ".fi\n";
}

}  // namespace syncrun::detail::master::command_line

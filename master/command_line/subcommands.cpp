#include "master/command_line/subcommands.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "common/text/errors.hpp"
#include "master/command_line/completions.hpp"
#include "master/command_line/configuration.hpp"
#include "master/command_line/help.hpp"
#include "master/command_line/help_topics.hpp"
#include "master/command_line/man_page.hpp"
#include "master/command_line/options.hpp"
#include "master/doctor/doctor.hpp"
#include "master/inspect/attach.hpp"
#include "master/inspect/stacks.hpp"
#include "master/inspect/top.hpp"
#include "master/report/report_command.hpp"
#include "master/terminals/terminal.hpp"

namespace syncrun::detail::master::command_line {

namespace {

int show_help(std::span<char* const> words) {
  if (words.size() > 1) {
    text::throw_usage(std::string("syncrun help: expected one topic at most, got '") + words[0] + "' and '" + words[1] +
                      "'");
  }
  if (words.empty()) return say(help_text());
  return say(words[0] == std::string_view("--man") ? man_page() : help_on_topic(words[0]));
}

int show_completions(std::span<char* const> words) {
  if (words.size() != 1) text::throw_usage("syncrun completions: expected one shell: bash, zsh or fish");
  return say(completions(words[0]));
}

int show_configuration(std::span<char* const> words) {
  std::string name = "syncrun";
  std::vector<char*> argv{name.data()};
  argv.insert(argv.end(), words.begin(), words.end());
  const CommandOptions options = parse_options(static_cast<int>(argv.size()), argv.data());
  if (!options.command.empty())
    text::throw_usage("syncrun config: expected options only, got '" + options.command.front() + "'");
  return say(describe_configuration(options));
}

constexpr std::array kSubcommands{
    Subcommand{"doctor", doctor::kArguments, "check this machine, and measure it", doctor::run_doctor},
    Subcommand{"top", "[--pid PID] [--once] [--interval SECONDS]", "show live what each rank of a running job does",
               inspect::show_top},
    Subcommand{"stacks", "[--pid PID]", "print the native stacks of a running job", inspect::show_stacks},
    Subcommand{"attach", "RANK [--pid PID] [-- OPTIONS]", "attach gdb to a rank of a running job", inspect::attach_gdb},
    Subcommand{"config", "[options]", "print the value of each option, and where it comes from", show_configuration},
    Subcommand{"report", "FILE.json", "draw a profile as a page (-o PAGE)", report::run_report},
    Subcommand{"help", "[TOPIC]", "print this, or what TOPIC is about", show_help},
    Subcommand{"completions", "SHELL", "print completions for bash, zsh or fish", show_completions},
    // Without help, because only --wrap-terminal uses them.
    Subcommand{terminals::kOpenTerminal, "", "", terminals::open_terminal},
    Subcommand{terminals::kRunInTerminal, "", "", terminals::run_in_terminal},
};

}  // namespace

std::span<const Subcommand> subcommands() noexcept { return kSubcommands; }

const Subcommand* find_subcommand(int argc, char** argv) noexcept {
  if (argc < 2) return nullptr;
  const std::string_view word = argv[1];
  const auto found = std::ranges::find(kSubcommands, word, &Subcommand::name);
  return found == kSubcommands.end() ? nullptr : &*found;
}

int say(const std::string& text) { return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : 1; }

}  // namespace syncrun::detail::master::command_line

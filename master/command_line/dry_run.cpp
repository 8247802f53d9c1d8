#include "master/command_line/dry_run.hpp"

#include <algorithm>
#include <cctype>

#include "common/os/environment.hpp"
#include "master/devices/devices.hpp"
#include "master/devices/placement.hpp"
#include "master/devices/rank_devices.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// Says in a few words where the devices come from, if this may surprise the user. Else empty.
std::string note_on(const devices::DevicesChoice& choice, const devices::DevicesSource& source) {
  if (!choice.is_made()) return " (the default; the program may choose others)";
  const auto decides = devices::deciding_source(choice, source);
  const bool has_contexts = !devices::choice_from_environment().contexts.empty();
  if (!has_contexts || decides == devices::kContextsSource) return "";
  return " (" + std::string(decides) + " chooses them, so " + std::string(devices::kContextsSource) + " is ignored)";
}

std::string describe_devices(const CommandOptions& options) {
  devices::DevicesChoice choice{options.value_of(environment::kDevices), options.value_of(environment::kProcesses)};
  const bool is_given = choice.is_made();
  if (!is_given) choice = devices::choice_from_environment();
  const devices::DevicesSource& source = is_given ? devices::kFromCommandLine : devices::kFromEnvironment;
  return "devices" + note_on(choice, source) + ":\n" + describe_ranks(devices::resolve_devices(choice, source));
}

}  // namespace

std::string shell_word(const std::string& word) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./=:,+@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string describe_ranks(const devices::ChosenDevices& devices) {
  const devices::RankDevices ranks(devices.by_rank);
  std::string text;
  for (const int rank : ranks.all_ranks()) {
    const std::string names = devices::names_of_rank(devices.names, rank);
    text +=
        "  rank " + std::to_string(rank) + ": " + devices::to_string(devices.by_rank[static_cast<std::size_t>(rank)]);
    if (!names.empty()) text += " (" + names + ")";
    if (ranks.kinds().is_mixed()) {
      const int threads = devices::placement_of(devices.by_rank, rank).threads;
      text += ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
    }
    text += '\n';
  }
  return text;
}

std::string describe_start(const CommandOptions& options, const std::string& program) {
  std::string text = "command:\n  ";
  text += shell_word(program);
  for (std::size_t i = 1; i < options.command.size(); ++i) text.append(" ").append(shell_word(options.command[i]));
  text += '\n';
  text += describe_devices(options);
  text += "variables:\n";
  const auto changes = environment_for(options);
  for (const auto& [name, value] : changes.set) text += "  " + name + "=" + shell_word(value) + "\n";
  for (const auto& name : changes.unset) text += "  " + name + " is unset\n";
  return text;
}

}  // namespace syncrun::detail::master::command_line

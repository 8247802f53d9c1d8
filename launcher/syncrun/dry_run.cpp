#include "launcher/syncrun/dry_run.hpp"

#include <algorithm>
#include <cstdlib>

#include "common/protocol/environment.hpp"
#include "launcher/devices/devices.hpp"

namespace syncrun::detail {

namespace {

/// A word in the form that a shell requires.
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

std::string from_environment(const char* name) {
  const char* value = environment::get(name);
  return value == nullptr ? "" : value;
}

std::string describe_devices(const CommandOptions& options) {
  std::string devices = options.devices;
  std::string processes = options.processes;
  const bool is_given = !devices.empty() || !processes.empty();
  if (!is_given) {
    devices = from_environment(environment::kDevices);
    processes = from_environment(environment::kProcesses);
  }
  const bool is_default = devices.empty() && processes.empty();
  std::string text = is_default ? "devices (the default; the program may choose others):\n" : "devices:\n";
  int rank = 0;
  for (const auto& device : resolve_devices(devices, processes, is_given ? kFromCommandLine : kFromEnvironment)) {
    text += "  rank " + std::to_string(rank++) + ": " + to_string(device) + "\n";
  }
  return text;
}

}  // namespace

std::string describe_start(const CommandOptions& options, const std::string& program) {
  std::string text = "command:\n  ";
  text += shell_word(program);
  for (std::size_t i = 1; i < options.command.size(); ++i) text.append(" ").append(shell_word(options.command[i]));
  text += "\n";
  text += describe_devices(options);
  text += "variables:\n";
  const auto changes = environment_for(options);
  for (const auto& [name, value] : changes.set) text += "  " + name + "=" + shell_word(value) + "\n";
  for (const auto& name : changes.unset) text += "  " + name + " is unset\n";
  return text;
}

}  // namespace syncrun::detail

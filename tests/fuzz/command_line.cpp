// The command line of `syncrun`. If it accepts its options, the master that it starts accepts the environment made from
// them.

#include "common/os/environment.hpp"
#include "master/command_line/options.hpp"
#include "master/settings/settings.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;

void check_environment(const master::command_line::CommandOptions& options) {
  const master::command_line::EnvironmentChanges changes = master::command_line::environment_for(options);
  for (const auto& [name, value] : changes.set) {
    fuzzing::expect(!value.empty(), "a variable that is set says something");
    // With this variable, the master would create the folder.
    if (name != environment::kLogDir) ::setenv(name.c_str(), value.c_str(), 1);
  }
  for (const auto& name : changes.unset) ::unsetenv(name.c_str());
  const master::settings::Settings settings = master::settings::resolve_settings({});
  fuzzing::expect(settings.call_timeout.count() >= 0 && settings.start_timeout.count() >= 0, "times from 0");
  for (const auto& change : changes.set) ::unsetenv(change.first.c_str());
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  fuzzing::CommandLine line(fuzzing::text_of(data, size));
  master::command_line::CommandOptions options;
  const bool is_good = fuzzing::accepts(syncrun::ErrorKind::usage, [&] {
    options = master::command_line::parse_command_line(line.count(), line.pointers());
  });
  using Action = master::command_line::CommandOptions::Action;
  if (!is_good || options.action == Action::version || options.action == Action::help) return 0;
  fuzzing::expect(!options.command.empty() && options.command.size() < static_cast<std::size_t>(line.count()),
                  "a program to run, out of the arguments");
  fuzzing::expect(options.command.back() == line.pointers()[line.count() - 1], "the program's arguments are the last");
  fuzzing::expect(!options.grace || options.grace->count() >= 0, "a grace period from 0");
  check_environment(options);
  return 0;
}

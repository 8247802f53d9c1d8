// syncrun [options] program [arguments]: reads the command line and runs a supervisor.

#include <unistd.h>

#include <cstdio>
#include <exception>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "common/text/visible_text.hpp"
#include "launcher/syncrun/dry_run.hpp"
#include "launcher/syncrun/options.hpp"
#include "launcher/syncrun/preparation.hpp"
#include "launcher/syncrun/supervisor.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail {
namespace {

int say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

int run_program(const CommandOptions& options, const std::string& program) {
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);
  const auto level = options.log_level.empty() ? LogLevel::warning : *parse_log_level(options.log_level);
  Supervisor supervisor({program, options.command, environment_for(options), options.grace, options.max_restarts},
                        make_logger("syncrun", level));
  const Conclusion conclusion = supervisor.run();
  if (!conclusion.message.empty()) {
    // The message may contain the last lines of a worker.
    std::fprintf(stderr, "syncrun: %s\n", text_for(STDERR_FILENO, with_indented_lines(conclusion.message)).c_str());
  }
  return conclusion.exit_code;
}

int command(int argc, char** argv) {
  using Action = CommandOptions::Action;
  const auto options = parse_command_line(argc, argv);
  if (options.action == Action::help) return say(help_text());
  if (options.action == Action::version) return say(std::string("syncrun ") + version() + "\n");
  if (!options.log_dir.empty()) check_log_dir(options.log_dir);
  const auto program = find_program(options.command.front());
  if (options.action == Action::dry_run) return say(describe_start(options, program));
  return run_program(options, program);
}

int fail(int code, const std::exception& error) {
  std::fprintf(stderr, "syncrun: %s\n", error.what());
  return code;
}

int exit_code_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return kUsageExit;
  // The kernel refused a program that passed our checks: its interpreter is missing, its format is unknown, there are
  // too many processes, ...
  return kNotExecutableExit;
}

}  // namespace
}  // namespace syncrun::detail

int main(int argc, char** argv) {
  using namespace syncrun::detail;
  open_missing_standard_streams();
  try {
    return command(argc, argv);
  } catch (const CommandFailure& failure) {
    return fail(failure.exit_code, failure);
  } catch (const syncrun::Error& error) {
    return fail(exit_code_of(error), error);
  } catch (const std::exception& error) {
    return fail(1, error);
  }
}

#include "tests/demos/command.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

extern char** environ;

namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

/// A temporary file without a name: it takes any amount of output and is gone with its owner.
File temporary_file() {
  File file(std::tmpfile());
  if (!file) throw std::system_error(errno, std::generic_category(), "tmpfile");
  return file;
}

std::string contents(std::FILE* file) {
  std::string text;
  std::array<char, 4096> chunk{};
  std::rewind(file);
  for (std::size_t got = 0; (got = std::fread(chunk.data(), 1, chunk.size(), file)) > 0;) {
    text.append(chunk.data(), got);
  }
  return text;
}

pid_t start(const std::vector<std::string>& command, int output, int errors) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), command[0]);
  return pid;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& command) {
  const File output = temporary_file();
  const File errors = temporary_file();
  const pid_t pid = start(command, fileno(output.get()), fileno(errors.get()));
  int status = 0;
  while (waitpid(pid, &status, 0) == -1 && errno == EINTR) continue;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(output.get()), contents(errors.get())};
}

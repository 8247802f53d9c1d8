#include "master/doctor/program_run.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::doctor {

namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    text::check_system(::pipe2(ends.data(), O_CLOEXEC), "pipe2");
    from = os::FileDescriptor(ends[0]);
    to = os::FileDescriptor(ends[1]);
  }
  os::FileDescriptor from;
  os::FileDescriptor to;
};

/// Reads what is there. Closes the pipe at its end.
void read_some(os::FileDescriptor& from, std::string& text) {
  std::array<char, 4096> block{};
  const ssize_t got = ::read(from.get(), block.data(), block.size());
  if (got > 0) text.append(block.data(), static_cast<std::size_t>(got));
  else if (got == 0 || errno != EINTR) from.reset();
}

int milliseconds_until(os::Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - os::Clock::now()).count();
  return left <= 0 ? 0 : static_cast<int>(left) + 1;
}

/// Reads both pipes until their ends. Returns false if the limit came first.
bool read_all(Pipe& output, Pipe& errors, ProgramEnd& end, os::Clock::time_point limit) {
  while (output.from.is_open() || errors.from.is_open()) {
    std::array<pollfd, 2> wanted{{{output.from.get(), POLLIN, 0}, {errors.from.get(), POLLIN, 0}}};
    const int left = milliseconds_until(limit);
    if (left == 0) return false;
    if (::poll(wanted.data(), wanted.size(), left) <= 0) continue;
    if (wanted[0].revents != 0) read_some(output.from, end.output);
    if (wanted[1].revents != 0) read_some(errors.from, end.errors);
  }
  return true;
}

}  // namespace

ProgramEnd run_program(const std::vector<std::string>& command, std::chrono::milliseconds limit,
                       std::vector<std::pair<std::string, std::string>> variables) {
  ProgramEnd end;
  Pipe output;
  Pipe errors;
  process::SpawnRequest request;
  request.program = command.front();
  request.arguments = command;
  request.environment = std::move(variables);
  request.standard_output = output.to.get();
  request.standard_error = errors.to.get();
  process::SpawnedProcess child;
  try {
    child = process::spawn(request);
  } catch (const Error& error) {
    end.errors = error.what();
    return end;
  }
  output.to.reset();
  errors.to.reset();
  const auto deadline = os::Clock::now() + limit;
  end.was_late = !read_all(output, errors, end, deadline);
  // It may have closed both pipes, and go on.
  pollfd ended{child.pidfd.get(), POLLIN, 0};
  while (!end.was_late && child.pidfd.is_open() && ::poll(&ended, 1, milliseconds_until(deadline)) <= 0)
    end.was_late = os::Clock::now() >= deadline;
  if (end.was_late) ::kill(child.pid, SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
}

}  // namespace syncrun::detail::master::doctor

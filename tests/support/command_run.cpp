#include "tests/support/command_run.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {

namespace {

using detail::os::FileDescriptor;

std::string contents(const FileDescriptor& file) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const auto count = ::pread(file.get(), part.data(), part.size(), static_cast<off_t>(text.size()));
    if (count <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

/// A file in memory for the output of several writers. Linux gives these files no lock on their position, so writers
/// without O_APPEND overwrite each other's lines.
FileDescriptor output_file(const char* name) {
  FileDescriptor file(::memfd_create(name, MFD_CLOEXEC));
  ::fcntl(file.get(), F_SETFL, O_APPEND);
  return file;
}

std::string new_mark() {
  static int runs = 0;
  return "SYNCRUN_TEST_RUN=" + std::to_string(::getpid()) + "." + std::to_string(++runs) + ".";
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> directory(::opendir("/proc"), close);
  while (const dirent* entry = ::readdir(directory.get())) {
    if (const pid_t pid = std::atoi(entry->d_name); pid > 0) pids.push_back(pid);
  }
  return pids;
}

void become_session_on(const char* terminal) {
  ::setsid();
  const int fd = ::open(terminal, O_RDWR);  // becomes the controlling terminal
  ::dup2(fd, STDIN_FILENO);
}

}  // namespace

bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

char state_of(pid_t pid) {
  const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
  const auto after_name = stat.rfind(')');
  return after_name == std::string::npos ? '-' : stat[after_name + 2];
}

#if defined(SYNCRUN_SCRIPTED_PROGRAM)
std::string scripted_program() { return SYNCRUN_SCRIPTED_PROGRAM; }
#endif

CommandRun::CommandRun(const std::vector<std::string>& arguments, const Start& start, const std::string& image)
    : mark_(new_mark()), output_(output_file("output")), errors_(output_file("errors")) {
  std::string path = image.empty() ? SYNCRUN_COMMAND : image;
  std::vector<char*> argv{path.data()};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::array<char, 128> terminal{};
  if (start.on_terminal) {
    terminal_ = FileDescriptor(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    ::grantpt(terminal_.get());
    ::unlockpt(terminal_.get());
    ::ptsname_r(terminal_.get(), terminal.data(), terminal.size());
  }
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (start.on_terminal) become_session_on(terminal.data());
  else ::setpgid(0, 0);
  if (start.ignores_sighup) ::signal(SIGHUP, SIG_IGN);
  ::dup2(output_.get(), STDOUT_FILENO);
  ::dup2(errors_.get(), STDERR_FILENO);
  ::setenv("XDG_CONFIG_HOME", "/proc/no-configuration", 1);  // of the user who runs the tests
  if (start.in_child) start.in_child();
  ::putenv(mark_.data());
  ::execv(path.c_str(), argv.data());
  ::_exit(127);
}

CommandRun::~CommandRun() {
  for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void CommandRun::send(int signal) const {
  ASSERT_GT(pid_, 1) << "the command has ended";
  ::kill(pid_, signal);
}

void CommandRun::type(const std::string& keys) const {
  ASSERT_EQ(::write(terminal_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

int CommandRun::exit_code(std::chrono::seconds limit) {
  int status = 0;
  const bool ended = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, limit);
  EXPECT_TRUE(ended) << "the command did not end; its errors so far:\n" << errors();
  if (!ended) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::string CommandRun::output() const { return contents(output_); }
std::string CommandRun::errors() const { return contents(errors_); }

std::string CommandRun::last_error_line() const {
  std::string text = errors();
  if (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

bool CommandRun::prints(const std::string& text) const {
  return eventually([&] { return output().find(text) != std::string::npos; });
}

std::vector<pid_t> CommandRun::processes() const {
  std::vector<pid_t> pids;
  for (const pid_t pid : all_processes()) {
    if (text_of("/proc/" + std::to_string(pid) + "/environ").find(mark_) != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

CommandResult run_command(const std::vector<std::string>& command) {
  CommandRun run({command.begin() + 1, command.end()}, {}, command.front());
  const int code = run.exit_code(std::chrono::seconds(SYNCRUN_COMPUTING_CALL_TIMEOUT_S) * 4);
  return {code < 1000 ? code : -1, run.output(), run.errors()};
}

bool CommandRun::nothing_remains() const {
  return eventually([this] { return processes().empty(); });
}

void CommandRun::expect_end(int code) {
  EXPECT_EQ(exit_code(), code) << errors();
  EXPECT_TRUE(nothing_remains());
}

}  // namespace syncrun::test

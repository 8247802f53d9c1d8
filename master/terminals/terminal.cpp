#include "master/terminals/terminal.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/executable.hpp"
#include "common/os/file_descriptor.hpp"
#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::terminals {

namespace {

constexpr std::string_view kTmux = "tmux";
constexpr std::string_view kXterm = "xterm";
constexpr std::size_t kMostDescriptors = 200;  // the kernel passes at most 253 at once
/// A terminal opens within this time, also on a busy machine or over a slow network.
constexpr os::Milliseconds kOpenLimit = std::chrono::minutes(1);
constexpr int kTick_ms = 100;

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The descriptors above the standard streams that programs started from here inherit.
std::vector<int> inherited_descriptors() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    const int flags = ::fcntl(fd, F_GETFD);
    if (fd > STDERR_FILENO && flags >= 0 && (flags & FD_CLOEXEC) == 0) found.push_back(fd);
  }
  if (found.size() > kMostDescriptors)
    text::throw_usage("--wrap-terminal: expected at most " + std::to_string(kMostDescriptors) +
                      " open files, got more");
  return found;
}

// ---- the socket -------------------------------------------------------------------------------------------------

/// An abstract address, which the kernel chooses and which leaves no file. Other users can connect too, so both sides check
/// who the other one is.
struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  static constexpr std::size_t kStart = offsetof(sockaddr_un, sun_path) + 1;

  explicit Address(const std::string& word) {
    name.sun_family = AF_UNIX;
    std::memcpy(&name.sun_path[1], word.data(), std::min(word.size(), sizeof(name.sun_path) - 1));
    bytes = static_cast<socklen_t>(kStart + word.size());
  }
  static std::string of(int socket) {
    Address address("");
    address.bytes = sizeof(address.name);
    text::check_system(::getsockname(socket, reinterpret_cast<sockaddr*>(&address.name), &address.bytes),
                       "getsockname");
    return {&address.name.sun_path[1], address.bytes - kStart};
  }
};

bool is_of_this_user(int socket) noexcept {
  ucred other{};
  socklen_t bytes = sizeof(other);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 && other.uid == ::geteuid();
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) text::throw_errno("cannot send to the terminal");
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// Returns false at the end of the socket.
bool receive_all(int socket, char* bytes, std::size_t count) {
  for (std::size_t got = 0; got < count;) {
    const auto more = ::recv(socket, bytes + got, count - got, 0);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return false;
    got += static_cast<std::size_t>(more);
  }
  return true;
}

constexpr const char* kSentTooLittle = "the process that opened this terminal has sent too little";

/// A message with the descriptors: their number, and the size of the text that follows.
struct Head {
  std::uint64_t descriptors;
  std::uint64_t text_bytes;
};
union Control {
  cmsghdr align;
  std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> bytes;
};

void send_head(int socket, Head head, const std::vector<int>& descriptors) {
  Control control{};
  iovec part{&head, sizeof(head)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  text::check_system(::sendmsg(socket, &message, MSG_NOSIGNAL), "cannot send open files to the terminal");
}

std::vector<int> receive_head(int socket, Head& head) {
  Control control{};
  iovec part{&head, sizeof(head)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const auto count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  std::vector<int> descriptors;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message); count > 0 && header != nullptr) {
    descriptors.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(descriptors.data(), CMSG_DATA(header), sizeof(int) * descriptors.size());
  }
  if (count != static_cast<ssize_t>(sizeof(head)) || head.descriptors != descriptors.size())
    throw Error(ErrorKind::system, kSentTooLittle);
  return descriptors;
}

/// What the command gets, as words that end with a zero byte.
struct Surroundings {
  std::vector<std::string> numbers;    // of the descriptors
  std::vector<std::string> folder;     // the current one
  std::vector<std::string> variables;  // NAME=VALUE
  std::vector<std::string> command;

  std::string text() const {
    std::string text;
    for (const auto* const words : {&numbers, &folder, &variables, &command}) {
      text += std::to_string(words->size()) + '\0';
      for (const std::string& word : *words) text += word + '\0';
    }
    return text;
  }
  static Surroundings read(const std::string& text) {
    Surroundings read;
    std::size_t at = 0;
    const auto next = [&] {
      const auto end = text.find('\0', at);
      if (end == std::string::npos) throw Error(ErrorKind::system, kSentTooLittle);
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      return word;
    };
    for (auto* const words : {&read.numbers, &read.folder, &read.variables, &read.command}) {
      for (std::size_t left = std::strtoull(next().c_str(), nullptr, 10); left != 0; --left) words->push_back(next());
    }
    return read;
  }
};

// ---- the side of the master -------------------------------------------------------------------------------------

/// The command that opens the terminal and runs run_in_terminal() there. Says how to see a terminal that is not shown.
process::SpawnRequest request_for(const std::string& kind, const std::string& address) {
  const std::string title = "rank " + variable(environment::kRank);
  process::SpawnRequest request;
  request.program = os::find_executable(kind).path;
  if (kind == kXterm) {
    request.arguments = {"xterm", "-T", title, "-e"};
  } else if (!variable("TMUX").empty()) {
    request.arguments = {"tmux", "new-window", "-d", "-n", title};
  } else {
    const std::string name = "syncrun-" + variable(environment::kMasterPid) + "-rank" + variable(environment::kRank);
    request.arguments = {"tmux", "new-session", "-d", "-s", name, "-n", title};
    std::fprintf(stderr, "its wrapper runs in a terminal; see it with: tmux attach -t %s\n", name.c_str());
  }
  request.arguments.insert(request.arguments.end(), {own_path(), kRunInTerminal, address});
  return request;
}

/// Waits until the process in the terminal connects. Throws Error (system) if the terminal ends before, or does not open.
os::FileDescriptor await_connection(int listener, const std::string& kind, const process::SpawnedProcess& opener) {
  os::Patience patience(kOpenLimit);
  for (bool has_ended = false; !patience.is_over();) {
    pollfd polled{listener, POLLIN, 0};
    if (::poll(&polled, 1, kTick_ms) > 0) {
      os::FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.is_open() && is_of_this_user(socket.get())) return socket;
      continue;
    }
    int status = 0;
    if (has_ended || ::waitpid(opener.pid, &status, WNOHANG) != opener.pid) continue;
    has_ended = true;  // tmux has opened the terminal in another process
    if (kind == kTmux && status == 0) continue;
    throw Error(ErrorKind::system,
                "--wrap-terminal: " + kind + " has opened no terminal: it " + process::describe_status(status));
  }
  throw Error(ErrorKind::system,
              "--wrap-terminal: " + kind + " has opened no terminal within a minute. Check that it works by hand");
}

int end_as(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  ::signal(WTERMSIG(status), SIG_DFL);
  ::raise(WTERMSIG(status));
  return 128 + WTERMSIG(status);
}

// ---- the side of the terminal -----------------------------------------------------------------------------------

/// Moves a descriptor to a number above this one.
int move_above(int highest, int fd) {
  const int moved = text::check_system(::fcntl(fd, F_DUPFD_CLOEXEC, highest + 1), "cannot move an open file");
  ::close(fd);
  return moved;
}

/// Gives each received descriptor the number that it had where it comes from. Moves `socket` out of the way.
std::vector<int> place(std::vector<int> received, const std::vector<std::string>& numbers, os::FileDescriptor& socket) {
  std::vector<int> placed;
  for (const std::string& number : numbers) placed.push_back(std::atoi(number.c_str()));
  if (placed.size() != received.size()) throw Error(ErrorKind::system, kSentTooLittle);
  const int highest = placed.empty() ? 0 : *std::max_element(placed.begin(), placed.end());
  socket = os::FileDescriptor(move_above(highest, socket.release()));
  for (int& fd : received) fd = move_above(highest, fd);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    text::check_system(::dup2(received[i], placed[i]), "cannot move an open file");
    ::close(received[i]);
  }
  return placed;
}

/// Takes the environment of the job, and keeps the variables that describe this terminal.
void take_variables(const std::vector<std::string>& variables) {
  constexpr std::array kOfTerminal{"TERM", "COLORTERM", "TMUX", "TMUX_PANE", "WINDOWID", "LINES", "COLUMNS"};
  std::vector<std::pair<const char*, std::string>> kept;
  for (const char* const name : kOfTerminal) {
    if (const char* const value = std::getenv(name); value != nullptr) kept.emplace_back(name, value);
  }
  ::clearenv();
  for (const std::string& each : variables) {
    const auto equals = each.find('=');
    if (equals != std::string::npos) ::setenv(each.substr(0, equals).c_str(), each.c_str() + equals + 1, 1);
  }
  for (const char* const name : kOfTerminal) ::unsetenv(name);
  for (const auto& [name, value] : kept) ::setenv(name, value.c_str(), 1);
}

/// Waits for the command. If the other side is gone, kills it. Returns its status, or nothing in that case.
std::optional<int> await_command(const process::SpawnedProcess& command, int socket) {
  for (;;) {
    std::array<pollfd, 2> polled{pollfd{socket, POLLRDHUP, 0}, pollfd{command.pidfd.get(), POLLIN, 0}};
    ::poll(polled.data(), polled.size(), kTick_ms);
    int status = 0;
    if (::waitpid(command.pid, &status, WNOHANG) == command.pid) return status;
    if ((polled[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
    ::kill(command.pid, SIGKILL);
    ::waitpid(command.pid, &status, 0);
    return std::nullopt;
  }
}

}  // namespace

std::string command_for(const std::string& kind) {
  if (kind != kTmux && kind != kXterm) text::throw_usage("--wrap-terminal: expected tmux or xterm, got '" + kind + "'");
  if (os::find_executable(kind).error != 0)
    text::throw_usage("--wrap-terminal: " + kind + " is not in PATH. Install it (apt install " + kind + ")");
  if (kind == kXterm && variable("DISPLAY").empty())
    text::throw_usage("--wrap-terminal: xterm requires an X server, and DISPLAY is not set. Use tmux, or set it");
  std::string path = "'";
  for (const char c : own_path()) path += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return path + "' " + kOpenTerminal + " " + kind;
}

int open_terminal(std::span<char* const> words) {
  if (words.size() < 2) text::throw_usage("expected a kind of terminal and a command");
  const std::string kind = words.front();
  const std::vector<int> descriptors = inherited_descriptors();
  for (const int fd : descriptors) ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // a server of tmux must not keep them
  const os::FileDescriptor listener(
      text::check_system(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "cannot make a socket"));
  const sockaddr_un any{.sun_family = AF_UNIX, .sun_path = {}};
  text::check_system(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any.sun_family)), "bind");
  text::check_system(::listen(listener.get(), 8), "listen");

  const auto opener = process::spawn(request_for(kind, Address::of(listener.get())));
  const os::FileDescriptor socket = await_connection(listener.get(), kind, opener);
  Surroundings sent;
  for (const int fd : descriptors) sent.numbers.push_back(std::to_string(fd));
  sent.folder = {std::filesystem::current_path().string()};
  for (char** each = ::environ; *each != nullptr; ++each) sent.variables.emplace_back(*each);
  sent.command.assign(words.begin() + 1, words.end());
  const std::string text = sent.text();
  send_head(socket.get(), {descriptors.size(), text.size()}, descriptors);
  send_all(socket.get(), text);
  for (const int fd : descriptors) ::close(fd);  // the worker alone has them now

  int status = 0;
  if (receive_all(socket.get(), reinterpret_cast<char*>(&status), sizeof(status))) return end_as(status);
  std::fputs("syncrun: the terminal was closed before the command in it had ended\n", stderr);
  return 1;
}

int run_in_terminal(std::span<char* const> words) {
  if (words.size() != 1) text::throw_usage("expected the address of a socket");
  os::FileDescriptor socket(
      text::check_system(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "cannot make a socket"));
  const Address address(words.front());
  text::check_system(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes),
                     "the process that opened this terminal is gone");
  if (!is_of_this_user(socket.get())) text::throw_usage("expected a socket of this user");
  Head head{};
  const std::vector<int> received = receive_head(socket.get(), head);
  std::string text(head.text_bytes, '\0');
  if (!receive_all(socket.get(), text.data(), text.size()))
    throw Error(ErrorKind::system, "the process that opened this terminal is gone");
  const Surroundings got = Surroundings::read(text);

  process::SpawnRequest request;
  request.inherited = place(received, got.numbers, socket);
  take_variables(got.variables);
  std::filesystem::current_path(got.folder.at(0));
  request.program = os::find_executable(got.command.at(0)).path;
  request.arguments = got.command;
  request.reads_input = true;
  const auto command = process::spawn(request);
  for (const int fd : request.inherited) ::close(fd);
  for (const int signal : {SIGINT, SIGQUIT, SIGTSTP}) ::signal(signal, SIG_IGN);  // they are for the command
  const auto status = await_command(command, socket.get());
  if (!status) return 1;
  send_all(socket.get(), {reinterpret_cast<const char*>(&*status), sizeof(*status)});
  std::printf("[the wrapper %s; press Enter to close this terminal]\n", process::describe_status(*status).c_str());
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') {
  }
  return 0;
}

}  // namespace syncrun::detail::master::terminals

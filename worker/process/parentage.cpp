#include "worker/process/parentage.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "common/os/environment.hpp"
#include "common/protocol/control_block.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::worker::process {

namespace {

constexpr std::int64_t kHighestInt = std::numeric_limits<int>::max();

[[noreturn]] void refuse(const char* name, const std::string& got, const std::string& expected) {
  text::throw_usage(
      std::string(name) + ": expected " + expected + ", got " + got + ". Only Syncrun sets its internal variables (" +
      environment::kWorkerRank + ", " + environment::kHelper +
      " and what goes with them), for the processes that it starts: if you started this program yourself, unset "
      "them; else something between Syncrun and the program has changed them or closed its descriptors");
}

std::string quoted(const std::string& value) { return "'" + value + "'"; }
std::string with_reason(const std::string& value, int code) {
  return quoted(value) + " (" + std::generic_category().message(code) + ")";
}

/// Whether the program has raised privileges through a user or group id. Then the credentials of a socket can prove
/// that its maker had the same ids. They do not show capabilities.
bool has_raised_ids() noexcept { return ::geteuid() != ::getuid() || ::getegid() != ::getgid(); }

std::optional<ucred> maker_of(int socket) noexcept {
  int type = 0;
  int domain = 0;
  ucred maker{};
  socklen_t bytes = sizeof(int);
  if (::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM) return std::nullopt;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX) return std::nullopt;
  bytes = sizeof(maker);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &bytes) != 0) return std::nullopt;
  return maker;
}

/// Whether the process that had the other end is gone (end of file).
bool is_closed(int socket) noexcept {
  pollfd polled{socket, POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLHUP | POLLRDHUP)) != 0;
}

/// A user who starts a program with raised privileges can choose its environment, its descriptors and its parent. This
/// user cannot make a socket that has these privileges as its credentials.
void check_privileges(const ucred& maker) {
  if (!environment::is_privileged()) return;
  if (has_raised_ids() && maker.pid == ::getppid() && maker.uid == ::geteuid() && maker.gid == ::getegid()) return;
  text::throw_usage(
      std::string("a program with raised privileges (set-user-ID, set-group-ID, file capabilities) ignores ") +
      (is_called_helper() ? environment::kHelper : environment::kWorkerRank) + ", since anybody could set it" +
      (has_raised_ids() ? "" : ": with file capabilities it cannot have workers, producers or tasks"));
}

}  // namespace

bool is_called_worker() noexcept { return std::getenv(environment::kWorkerRank) != nullptr; }
bool is_called_helper() noexcept { return std::getenv(environment::kHelper) != nullptr; }

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) refuse(name, "nothing: it is not set", "a value from the master that started this process");
  std::string text = value;
  ::unsetenv(name);
  return text;
}

std::int64_t take_number(const char* name, std::int64_t most) {
  const std::string text = take_variable(name);
  const auto number = environment::whole_number(text.c_str());
  if (number && *number >= 0 && *number <= most) return *number;
  refuse(name, quoted(text), "a whole number from 0 to " + std::to_string(most));
}

os::FileDescriptor take_descriptor(const char* name, const std::string& what) {
  const auto fd = static_cast<int>(take_number(name, kHighestInt));
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) return os::FileDescriptor(fd);
  refuse(name, with_reason(std::to_string(fd), errno), "an open descriptor, of " + what);
}

Parentage take_parentage() {
  // The variable with the role of the process is removed last, because messages name it.
  const auto master = static_cast<pid_t>(take_number(environment::kMasterPid, kHighestInt));
  const std::string what = "the socket of the process " + std::to_string(master) + ", this one's master";
  os::FileDescriptor socket = take_descriptor(environment::kSocketFd, what);
  const auto maker = maker_of(socket.get());
  if (!maker || maker->pid != master) {
    refuse(environment::kSocketFd, quoted(std::to_string(socket.release())) + ", which is another file", what);
  }
  check_privileges(*maker);
  const bool is_wrapped = std::getenv(environment::kIsWrapped) != nullptr;
  ::unsetenv(environment::kIsWrapped);
  const pid_t parent = ::getppid();
  if (is_wrapped) return {master, parent, true, std::move(socket)};  // the socket shows that the master has started it
  // If the master has died in the meantime, it is no longer the parent.
  if (parent != master && !is_closed(socket.get())) {
    refuse(environment::kMasterPid, quoted(std::to_string(master)),
           "this process's parent (" + std::to_string(parent) + ")");
  }
  return {master, master, false, std::move(socket)};
}

os::Segment take_segment() {
  const std::string what = "the shared memory of the master's session";
  os::FileDescriptor fd = take_descriptor(environment::kSegmentFd, what);
  const auto bytes =
      static_cast<std::size_t>(take_number(environment::kSegmentBytes, std::numeric_limits<std::int64_t>::max()));
  struct stat status {};
  text::check_system(::fstat(fd.get(), &status), "cannot look at the session's shared memory");
  std::uint64_t magic = 0;
  const bool is_read = ::pread(fd.get(), &magic, sizeof(magic), 0) == static_cast<ssize_t>(sizeof(magic));
  if (!S_ISREG(status.st_mode) || !is_read || magic != protocol::kMagic) {
    refuse(environment::kSegmentFd, quoted(std::to_string(fd.release())) + ", which is another file", what);
  }
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    refuse(environment::kSegmentBytes, quoted(std::to_string(bytes)), "its size, " + std::to_string(status.st_size));
  }
  return os::Segment::attach(std::move(fd), bytes);
}

}  // namespace syncrun::detail::worker::process

#include "common/protocol/supervisor_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "common/os/environment.hpp"

namespace syncrun::detail::protocol {

namespace {
constexpr std::size_t kLongestMessage = 65536;
constexpr std::int64_t kHighestDescriptor = std::numeric_limits<int>::max();
/// Whether this is a socket of the kind that `syncrun` makes (Supervisor::start_master). Any other descriptor belongs
/// to the program.
bool is_link(int fd) noexcept {
  int type = 0;
  int domain = 0;
  socklen_t bytes = sizeof(type);
  const bool is_socket = ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 &&
                         ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0;
  return is_socket && type == SOCK_SEQPACKET && domain == AF_UNIX;
}

}  // namespace

SupervisorLink SupervisorLink::from_environment() {
  const char* value = environment::get(environment::kSupervisorFd);
  if (value == nullptr) return {};
  const std::string text = value;
  ::unsetenv(environment::kSupervisorFd);
  const auto number = environment::whole_number(text.c_str());
  const int fd = number && *number > STDERR_FILENO && *number <= kHighestDescriptor ? static_cast<int>(*number) : -1;
  if (is_link(fd) && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) return SupervisorLink(os::FileDescriptor(fd));
  std::fprintf(
      stderr,
      "syncrun: %s: expected an open socket to the syncrun that runs this program, got '%s'; it is ignored (did "
      "whatever started the program close its descriptors, or set the variable?)\n",
      environment::kSupervisorFd, text.c_str());
  return {};
}

bool SupervisorLink::send(const SupervisorMessage& message) const noexcept {
  if (!socket_.is_intact() || ::getpid() != owner_) return false;
  std::array<char, kLongestMessage> bytes;
  bytes[0] = static_cast<char>(message.kind);
  std::memcpy(&bytes[1], &message.number, sizeof(message.number));
  const std::size_t text = std::min(message.text.size(), kLongestMessage - 1 - sizeof(message.number));
  std::memcpy(&bytes[1 + sizeof(message.number)], message.text.data(), text);
  // MSG_DONTWAIT: `syncrun` reads all the time unless it is stopped or dead. The job continues without it then.
  return ::send(socket_.get(), bytes.data(), 1 + sizeof(message.number) + text, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/// Each name and each value ends with a zero byte.
std::string encoded(const FailureDetails& details) {
  std::string text;
  for (const auto& [name, value] : details) {
    for (const std::string& part : {name, value}) text.append(part.substr(0, part.find('\0'))) += '\0';
  }
  return text;
}

FailureDetails decoded_details(std::string_view text) {
  FailureDetails details;
  const auto next = [&text] {
    const std::size_t end = std::min(text.find('\0'), text.size());  // the last one may be cut
    std::string part(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return part;
  };
  while (!text.empty()) {
    std::string name = next();
    details.emplace_back(std::move(name), next());
  }
  return details;
}

std::optional<SupervisorMessage> receive_from_master(int socket) {
  std::array<char, kLongestMessage> bytes;
  const auto count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < static_cast<ssize_t>(1 + sizeof(SupervisorMessage::number))) return std::nullopt;
  SupervisorMessage message{.kind = static_cast<SupervisorMessage::Kind>(bytes[0]), .number = 0, .text = {}};
  std::memcpy(&message.number, &bytes[1], sizeof(message.number));
  message.text.assign(&bytes[1 + sizeof(message.number)], static_cast<std::size_t>(count) - 1 - sizeof(message.number));
  return message;
}

const SupervisorLink& supervisor_link() {
  static const SupervisorLink link = SupervisorLink::from_environment();
  return link;
}

}  // namespace syncrun::detail::protocol

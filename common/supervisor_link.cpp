#include "common/supervisor_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "common/environment.hpp"

namespace syncrun::detail {

namespace {
constexpr std::size_t kLongestMessage = 16384;
}

SupervisorLink SupervisorLink::from_environment() {
  const char* text = std::getenv(environment::kSupervisorFd);
  if (text == nullptr) return {};
  const int fd = std::atoi(text);
  ::unsetenv(environment::kSupervisorFd);
  if (fd <= 2 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return {};
  return SupervisorLink(FileDescriptor(fd));
}

bool SupervisorLink::send(const SupervisorMessage& message) const noexcept {
  if (!socket_.is_intact()) return false;
  std::array<char, kLongestMessage> bytes;
  bytes[0] = static_cast<char>(message.kind);
  std::memcpy(&bytes[1], &message.number, sizeof(message.number));
  const std::size_t text = std::min(message.text.size(), kLongestMessage - 1 - sizeof(message.number));
  std::memcpy(&bytes[1 + sizeof(message.number)], message.text.data(), text);
  // MSG_DONTWAIT: `syncrun` reads all the time; if it does not, it is stopped or dead, and the job goes on without it.
  return ::send(socket_.get(), bytes.data(), 1 + sizeof(message.number) + text, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

std::optional<SupervisorMessage> receive_from_master(int socket) {
  std::array<char, kLongestMessage> bytes;
  const auto count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  SupervisorMessage message{};
  if (count < static_cast<ssize_t>(1 + sizeof(message.number))) return std::nullopt;
  message.kind = static_cast<SupervisorMessage::Kind>(bytes[0]);
  std::memcpy(&message.number, &bytes[1], sizeof(message.number));
  message.text.assign(&bytes[1 + sizeof(message.number)], static_cast<std::size_t>(count) - 1 - sizeof(message.number));
  return message;
}

const SupervisorLink& supervisor_link() {
  static const SupervisorLink link = SupervisorLink::from_environment();
  return link;
}

}  // namespace syncrun::detail

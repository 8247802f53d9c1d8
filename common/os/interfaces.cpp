#include "common/os/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::os {

std::string network_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "unknown";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  std::string text;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    const bool is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_up || at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> address{};
    const auto* const internet = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
    ::inet_ntop(AF_INET, &internet->sin_addr, address.data(), address.size());
    text.append(text.empty() ? "" : ", ").append(at->ifa_name).append(" ").append(address.data());
  }
  return text.empty() ? "none besides loopback" : text;
}

int free_port() noexcept {
  constexpr int kUsualPort = 29500;
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t bytes = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool is_bound = ::bind(socket.get(), any, bytes) == 0 && ::getsockname(socket.get(), any, &bytes) == 0;
  return is_bound ? ntohs(address.sin_port) : kUsualPort;
}

}  // namespace syncrun::detail::os

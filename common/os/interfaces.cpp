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

namespace {

bool is_loopback(const ifaddrs& interface) noexcept { return (interface.ifa_flags & IFF_LOOPBACK) != 0; }

/// Calls `visit(interface, address)` for each IPv4 address of an interface that is up. Returns false if the system does not
/// list them.
template <class Visit>
bool for_each_address(Visit&& visit) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_UP) == 0 || at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    visit(*at, reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr);
  }
  return true;
}

}  // namespace

std::string network_interfaces() {
  std::string text;
  const bool are_known = for_each_address([&text](const ifaddrs& interface, const in_addr& internet) {
    if (is_loopback(interface)) return;
    std::array<char, INET_ADDRSTRLEN> address{};
    ::inet_ntop(AF_INET, &internet, address.data(), address.size());
    text.append(text.empty() ? "" : ", ").append(interface.ifa_name).append(" ").append(address.data());
  });
  if (!are_known) return "unknown";
  return text.empty() ? "none besides loopback" : text;
}

std::vector<std::uint32_t> ipv4_addresses(std::string_view interface) {
  std::vector<std::uint32_t> addresses;
  for_each_address([&](const ifaddrs& one, const in_addr& internet) {
    if (interface.empty() ? !is_loopback(one) : interface == one.ifa_name) addresses.push_back(internet.s_addr);
  });
  return addresses;
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

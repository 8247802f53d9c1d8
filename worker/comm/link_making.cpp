#include "worker/comm/link_making.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/os/interfaces.hpp"
#include "common/os/wait.hpp"
#include "common/text/fixed_text.hpp"

namespace syncrun::detail::worker::comm {

namespace {

constexpr std::uint64_t kMagic = 0x53594e434c494e4b;  // "SYNCLINK"
constexpr int kBacklog = 128;
/// Strangers that have called and said nothing. Beyond that, the oldest one is dropped.
constexpr std::size_t kMostCallers = 256;
constexpr int kAwaitMs = 5;

std::string words_of(int error) { return std::generic_category().message(error); }

sockaddr_in address_of(std::uint32_t address, std::uint16_t port) noexcept {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = address;
  place.sin_port = port;
  return place;
}

os::FileDescriptor new_socket() {
  return os::FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Sends and receives without a delay for small messages.
void make_prompt(int socket) noexcept {
  const int on = 1;
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

/// A greeting is so small that there is always room for it in a new connection.
template <class Greeting>
bool say(int socket, const Greeting& greeting) noexcept {
  return ::send(socket, &greeting, sizeof(greeting), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(greeting));
}

/// Receives more of a greeting. Returns false if the other end has closed the connection.
template <class Greeting>
bool hear(int socket, Greeting& greeting, std::size_t& got) noexcept {
  const ssize_t count = ::recv(socket, reinterpret_cast<std::byte*>(&greeting) + got, sizeof(greeting) - got, 0);
  if (count > 0) got += static_cast<std::size_t>(count);
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

std::string LinkOffer::who() const {
  return "rank " + std::to_string(rank) + " (" + std::string(text::get_text(host)) + ")";
}

LinkMaker::LinkMaker(int rank, std::string_view interface) : listener_(new_socket()) {
  offer_.rank = rank;
  std::array<char, 64> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  text::put_text(offer_.host, host.data());
  const std::vector<std::uint32_t> addresses = os::ipv4_addresses(interface);
  offer_.addresses_count = static_cast<std::uint16_t>(std::min(addresses.size(), LinkOffer::kMostAddresses));
  std::copy_n(addresses.begin(), offer_.addresses_count, offer_.addresses.begin());
  if (addresses.empty()) {
    text::put_text(offer_.problem,
                   "has no IPv4 address" + (interface.empty() ? "" : " at the interface " + std::string(interface)));
    return;
  }
  sockaddr_in place = address_of(addresses.size() == 1 ? addresses.front() : INADDR_ANY, 0);
  socklen_t bytes = sizeof(place);
  auto* const any = reinterpret_cast<sockaddr*>(&place);
  const bool is_listening = ::bind(listener_.get(), any, bytes) == 0 && ::listen(listener_.get(), kBacklog) == 0 &&
                            ::getsockname(listener_.get(), any, &bytes) == 0;
  const bool has_token =
      ::getrandom(offer_.token.data(), offer_.token.size(), 0) == static_cast<ssize_t>(offer_.token.size());
  if (is_listening && has_token) offer_.port = place.sin_port;
  else text::put_text(offer_.problem, "cannot listen: " + words_of(errno));
}

bool LinkMaker::is_linked_to(int rank) const noexcept {
  return std::any_of(links_.begin(), links_.end(), [rank](const LeaderLink& link) { return link.rank() == rank; });
}

void LinkMaker::add_link(const LinkOffer& offer, os::FileDescriptor socket) {
  make_prompt(socket.get());
  links_.emplace_back(offer.rank, offer.who(), std::move(socket));
}

/// Hosts can have the same address in networks of their own, such as those of containers. A call there would reach this host,
/// which must not see the token.
bool LinkMaker::is_own_address(const LinkOffer& offer, std::uint32_t address) const noexcept {
  const auto end = offer_.addresses.begin() + offer_.addresses_count;
  return offer.host != offer_.host && std::find(offer_.addresses.begin(), end, address) != end;
}

void LinkMaker::call_all(const LinkOffer& offer) {
  last_error_ = "both have the same addresses";
  for (std::size_t i = 0; i < std::min<std::size_t>(offer.addresses_count, LinkOffer::kMostAddresses); ++i) {
    if (is_own_address(offer, offer.addresses[i])) continue;
    Call call{&offer, new_socket()};
    const sockaddr_in place = address_of(offer.addresses[i], offer.port);
    if (::connect(call.socket.get(), reinterpret_cast<const sockaddr*>(&place), sizeof(place)) == 0 ||
        errno == EINPROGRESS)
      calls_.push_back(std::move(call));
    else last_error_ = words_of(errno);
  }
}

/// Returns false if the call has come to nothing, or has made the link.
bool LinkMaker::progress(Call& call) {
  if (is_linked_to(call.to->rank)) return false;
  const int socket = call.socket.get();
  if (!call.is_connected) {
    pollfd state{socket, POLLOUT, 0};
    if (::poll(&state, 1, 0) <= 0) return true;
    int error = 0;
    socklen_t bytes = sizeof(error);
    static_cast<void>(::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes));
    if (error == 0 && !say(socket, Greeting{kMagic, offer_.rank, 0, call.to->token})) error = errno;
    if (error != 0) {
      last_error_ = words_of(error);
      return false;
    }
    call.is_connected = true;
  }
  if (!hear(socket, call.answer, call.got)) {
    last_error_ = "what listens there has ended the connection";
    return false;
  }
  if (call.got < sizeof(Greeting)) return true;
  const bool is_right =
      call.answer.magic == kMagic && call.answer.rank == call.to->rank && call.answer.token == offer_.token;
  if (is_right) add_link(*call.to, std::move(call.socket));
  else last_error_ = "what listens there does not have the token";
  return false;
}

/// Returns false if the caller was refused, or is linked.
bool LinkMaker::progress(Caller& caller, std::span<const LinkOffer> awaited) {
  if (!hear(caller.socket.get(), caller.greeting, caller.got)) return false;
  if (caller.got < sizeof(Greeting)) return true;
  const Greeting& greeting = caller.greeting;
  const auto offer =
      std::find_if(awaited.begin(), awaited.end(), [&](const LinkOffer& one) { return one.rank == greeting.rank; });
  const bool is_right = greeting.magic == kMagic && greeting.token == offer_.token && offer != awaited.end();
  if (is_right && !is_linked_to(offer->rank) &&
      say(caller.socket.get(), Greeting{kMagic, offer_.rank, 0, offer->token}))
    add_link(*offer, std::move(caller.socket));
  return false;
}

void LinkMaker::accept() {
  for (;;) {
    os::FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    can_accept_ = socket.is_open() || errno == EAGAIN;
    if (!socket.is_open()) return;
    if (callers_.size() == kMostCallers) callers_.erase(callers_.begin());
    callers_.push_back({std::move(socket)});
  }
}

void LinkMaker::await_something() const {
  std::vector<pollfd> sockets{{can_accept_ ? listener_.get() : -1, POLLIN, 0}};
  for (const Call& call : calls_)
    sockets.push_back({call.socket.get(), static_cast<short>(call.is_connected ? POLLIN : POLLOUT), 0});
  for (const Caller& caller : callers_) sockets.push_back({caller.socket.get(), POLLIN, 0});
  static_cast<void>(::poll(sockets.data(), sockets.size(), kAwaitMs));
}

std::string LinkMaker::connect(std::span<const LinkOffer> offers, std::chrono::milliseconds limit,
                               const process::Interruption& interruption) {
  for (const LinkOffer& offer : offers) {
    if (offer.problem.front() != '\0') return offer.who() + " " + std::string(text::get_text(offer.problem));
  }
  const auto own =
      std::find_if(offers.begin(), offers.end(), [this](const LinkOffer& offer) { return offer.rank == offer_.rank; });
  const std::span<const LinkOffer> awaited(own + 1, offers.end());
  for (auto offer = offers.begin(); offer != own; ++offer) call_all(*offer);
  os::Patience patience(limit);
  while (links_.size() + 1 < offers.size()) {
    accept();
    std::erase_if(calls_, [this](Call& call) { return !progress(call); });
    std::erase_if(callers_, [&](Caller& caller) { return !progress(caller, awaited); });
    interruption.check();
    if (links_.size() + 1 == offers.size()) break;
    const auto missing = std::find_if(offers.begin(), offers.end(), [this](const LinkOffer& offer) {
      return offer.rank != offer_.rank && !is_linked_to(offer.rank);
    });
    const bool calls_it = missing < own;
    const bool is_called =
        std::any_of(calls_.begin(), calls_.end(), [&](const Call& call) { return call.to == &*missing; });
    if (calls_it && !is_called) return offer_.who() + " cannot connect to " + missing->who() + ": " + last_error_;
    if (patience.is_over()) {
      return offer_.who() + (calls_it ? " gets no answer from " : " was not called by ") + missing->who() + " within " +
             std::to_string(limit.count()) + " ms";
    }
    await_something();
  }
  return {};
}

}  // namespace syncrun::detail::worker::comm

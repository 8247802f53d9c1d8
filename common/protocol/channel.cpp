#include "common/protocol/channel.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "common/text/errors.hpp"

namespace syncrun::detail::protocol {

namespace {
// The memory for a frame starts with this size and doubles as bytes arrive. So a wrong length in a header does not make
// the receiver allocate more than this.
constexpr std::size_t kFirstPartBytes = std::size_t{1} << 20U;

bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK; }
}  // namespace

std::array<os::FileDescriptor, 2> Channel::make_ends() {
  std::array<int, 2> ends{};
  text::check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  return {os::FileDescriptor(ends[0]), os::FileDescriptor(ends[1])};
}

/// Waits until the socket is ready. Returns false at the end of patience. A hang-up or an error counts as ready, since
/// the system call that follows reports it.
bool Channel::await(short events, os::Patience& patience) const {
  for (;;) {
    pollfd entry{socket_.get(), events, 0};
    const auto nap = std::chrono::ceil<os::Milliseconds>(patience.nap(os::kLap));
    const int count = ::poll(&entry, 1, static_cast<int>(nap.count()));
    check_socket();
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) text::throw_errno("poll");
    if (patience.is_over()) return false;
  }
}

Channel::Outcome Channel::send_parts(std::span<iovec> parts, os::Patience& patience, bool& any) {
  while (!parts.empty()) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const auto count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EPIPE || errno == ECONNRESET) return Outcome::closed;
      if (errno == EINTR) continue;
      if (!would_block()) text::throw_errno("cannot send to the other end of a pipe");
      if (!await(POLLOUT, patience)) return Outcome::expired;
      continue;
    }
    any = any || count > 0;
    for (auto left = static_cast<std::size_t>(count); !parts.empty();) {
      iovec& part = parts.front();
      if (left < part.iov_len) {
        part.iov_base = static_cast<std::byte*>(part.iov_base) + left;
        part.iov_len -= left;
        break;
      }
      left -= part.iov_len;
      parts = parts.subspan(1);
    }
  }
  return Outcome::done;
}

/// Without this check, the channel could read from or write to another file that now has the number of the socket.
void Channel::check_socket() const {
  if (!socket_.is_intact()) throw text::descriptors_closed("a task's pipe");
}

Channel::Outcome Channel::send(FrameKind kind, std::span<const std::byte> bytes, os::Patience& patience) {
  check_socket();
  if (is_torn_) return Outcome::closed;
  Header header{kFrameMagic, kind, bytes.size()};
  std::array<iovec, 2> parts{iovec{&header, sizeof(header)},
                             iovec{const_cast<std::byte*>(bytes.data()), bytes.size()}};  // sendmsg only reads
  bool any = false;
  const Outcome outcome = send_parts(parts, patience, any);
  is_torn_ = outcome == Outcome::expired && any;
  return outcome;
}

Channel::Outcome Channel::fill(void* to, std::size_t bytes, std::size_t& filled, os::Patience& patience) {
  while (filled < bytes) {
    const auto count = ::recv(socket_.get(), static_cast<std::byte*>(to) + filled, bytes - filled, MSG_DONTWAIT);
    if (count > 0) {
      filled += static_cast<std::size_t>(count);
    } else if (count == 0 || errno == ECONNRESET) {
      return Outcome::closed;
    } else if (errno != EINTR) {
      if (!would_block()) text::throw_errno("cannot receive from the other end of a pipe");
      if (!await(POLLIN, patience)) return Outcome::expired;
    }
  }
  return Outcome::done;
}

Channel::Outcome Channel::receive(Frame& frame, os::Patience& patience) {
  check_socket();
  if (header_filled_ < sizeof(header_)) {
    const Outcome outcome = fill(&header_, sizeof(header_), header_filled_, patience);
    if (outcome != Outcome::done) return outcome;
    if (header_.magic != kFrameMagic) {
      throw Error(ErrorKind::system, "what came through a task's pipe is no message of Syncrun's");
    }
    arriving_.clear();
    filled_ = 0;
  }
  while (filled_ < header_.bytes) {
    if (filled_ == arriving_.size()) {
      arriving_.resize(std::min<std::uint64_t>(header_.bytes, std::max(kFirstPartBytes, 2 * arriving_.size())));
    }
    const Outcome outcome = fill(arriving_.data(), arriving_.size(), filled_, patience);
    if (outcome != Outcome::done) return outcome;
  }
  frame.kind = header_.kind;
  frame.bytes = std::move(arriving_);
  arriving_ = {};
  header_filled_ = 0;
  return Outcome::done;
}

void Channel::end_sending() noexcept {
  if (socket_.is_intact()) ::shutdown(socket_.get(), SHUT_WR);
}

void Channel::end_receiving() const noexcept {
  if (socket_.is_intact()) ::shutdown(socket_.get(), SHUT_RD);
}

}  // namespace syncrun::detail::protocol

#include "worker/comm/leader_links.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/text/errors.hpp"
#include "syncrun/error.hpp"
#include "worker/comm/meetings.hpp"

namespace syncrun::detail::worker::comm {

namespace {

/// After this time, a wait is long.
constexpr std::chrono::milliseconds kLongWait{20};
/// How often a long wait looks whether the other end is alive.
constexpr std::chrono::milliseconds kLookEvery{100};
/// The kernel has waited for an answer before it says ETIMEDOUT.
constexpr std::chrono::hours kLong{1};
/// What interrupts a wait does not wake it, so a sleep is short. It is longer once a wait has taken a second.
constexpr std::chrono::milliseconds kSleep{1};
constexpr std::chrono::milliseconds kLongSleep{8};
constexpr std::chrono::seconds kSleepsLongAfter{1};
/// The kernel asks for signs of life if a connection was idle for so long. Otherwise, a firewall may forget it.
constexpr std::chrono::seconds kIdle{60};
constexpr std::chrono::seconds kIdleInLongWait{1};
/// Linux refuses larger numbers of questions, and longer times between them.
constexpr std::int64_t kMostQuestions = 127;
constexpr std::int64_t kLongestInterval = 32767;

bool is_later(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace

// ---- one link -------------------------------------------------------------------------------------------------

/// The frame before may be partly sent: its exchange was given up.
void LeaderLink::begin(const FrameHeader& out, const std::byte* from, std::byte* to, std::size_t to_bytes) {
  if (!has_sent() && sent_ != 0) {
    old_header_ = out_;
    const auto* const header = reinterpret_cast<const std::byte*>(&old_header_);
    const std::size_t in_header = std::min(sent_, sizeof(FrameHeader));
    const std::size_t in_block = sent_ - in_header;
    rest_ = {Rest{header + in_header, sizeof(FrameHeader) - in_header}, Rest{from_ + in_block, out_.bytes - in_block}};
  }
  out_ = out;
  from_ = from;
  sent_ = 0;
  awaited_ = out;
  room_ = to;
  room_bytes_ = to_bytes;
  has_received_ = false;
  is_ahead_ = false;
  to_ = nullptr;  // a frame in progress is of an exchange that was given up
  unacknowledged_since_.reset();
}

bool LeaderLink::move() {
  if (!broken_.empty()) return false;
  const bool has_sent_some = !has_sent() && send();
  return (!has_received_ && receive()) || has_sent_some;
}

bool LeaderLink::send() {
  const std::size_t in_header = std::min(sent_, sizeof(FrameHeader));
  const std::size_t in_block = sent_ - in_header;
  const auto part = [](const std::byte* begin, std::size_t bytes) {
    return iovec{const_cast<std::byte*>(begin), bytes};
  };
  std::array<iovec, 4> parts{
      part(rest_[0].from, rest_[0].bytes), part(rest_[1].from, rest_[1].bytes),
      part(reinterpret_cast<const std::byte*>(&out_) + in_header, sizeof(FrameHeader) - in_header),
      part(from_ + in_block, out_.bytes - in_block)};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t result = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (result < 0) {
    note_error(errno);
    return false;
  }
  auto sent = static_cast<std::size_t>(result);
  for (Rest& rest : rest_) {
    const std::size_t of_rest = std::min(sent, rest.bytes);
    rest = {rest.from + of_rest, rest.bytes - of_rest};
    sent -= of_rest;
  }
  sent_ += sent;
  return result != 0;
}

void LeaderLink::note_error(int error) {
  if (!is_later(error)) note_broken(error_text(error), error == ETIMEDOUT ? kLong : os::Clock::duration{});
}

/// Returns what recv() does. Notes an end of the connection.
long LeaderLink::receive_into(std::byte* to, std::size_t bytes) {
  const ssize_t result = ::recv(socket_.get(), to, bytes, MSG_DONTWAIT);
  if (result == 0) note_broken("the other end has closed it");
  else if (result < 0) note_error(errno);
  return result;
}

/// Reads the header of the next frame. Returns false if it has not come, or if it is one of a later command.
bool LeaderLink::begin_frame() {
  if (end_ - begin_ < sizeof(FrameHeader)) return false;
  std::memcpy(&in_, buffer_.data() + begin_, sizeof(in_));
  is_ahead_ = in_.command > awaited_.command;
  if (is_ahead_) return false;
  begin_ += sizeof(FrameHeader);
  is_in_frame_ = true;
  left_ = in_.bytes;
  to_ = nullptr;
  if (in_.command != awaited_.command) return true;
  const bool is_awaited = in_.step == awaited_.step;
  if (is_awaited && in_.bytes <= room_bytes_) {
    to_ = room_;
    return true;
  }
  throw Error(ErrorKind::system, "a block of an exchange came from " + who_ + ": expected one of step " +
                                     std::to_string(awaited_.step) + " with up to " + std::to_string(room_bytes_) +
                                     " bytes, found step " + std::to_string(in_.step) + " with " +
                                     std::to_string(in_.bytes));
}

bool LeaderLink::receive() {
  bool did_something = false;
  for (;;) {
    if (!is_in_frame_ && !begin_frame()) {
      if (is_ahead_) return did_something;
      if (begin_ != 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
      const long count = receive_into(buffer_.data() + end_, buffer_.size() - end_);
      if (count <= 0) return did_something;
      end_ += static_cast<std::size_t>(count);
      did_something = true;
      continue;
    }
    const bool is_dropped = to_ == nullptr;
    const std::size_t buffered = std::min(left_, end_ - begin_);
    if (buffered != 0) {
      if (!is_dropped) to_ = std::copy_n(buffer_.data() + begin_, buffered, to_);
      begin_ += buffered;
      left_ -= buffered;
      did_something = true;
    }
    while (left_ != 0) {  // the buffer is empty now
      begin_ = end_ = 0;
      const long count =
          is_dropped ? receive_into(buffer_.data(), std::min(left_, buffer_.size())) : receive_into(to_, left_);
      if (count <= 0) return did_something;
      if (!is_dropped) to_ += count;
      left_ -= static_cast<std::size_t>(count);
      did_something = true;
    }
    is_in_frame_ = false;
    if (is_dropped) continue;
    has_received_ = true;
    return true;
  }
}

void LeaderLink::ask_for_life(std::chrono::seconds idle, std::chrono::milliseconds silence) noexcept {
  if (std::exchange(idle_, idle) == idle) return;
  const auto set = [this](int level, int option, std::int64_t value) {
    const int number = static_cast<int>(value);
    static_cast<void>(::setsockopt(socket_.get(), level, option, &number, sizeof(number)));
  };
  const std::int64_t seconds = std::max<std::int64_t>(1, silence.count() / 1000);
  const std::int64_t questions = std::min(seconds, kMostQuestions);
  set(IPPROTO_TCP, TCP_KEEPCNT, questions);
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::min((seconds + questions - 1) / questions, kLongestInterval));
  set(IPPROTO_TCP, TCP_KEEPIDLE, idle.count());
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

/// TCP_USER_TIMEOUT would also end a connection whose other end is alive but stopped, so that it has no room for more. Then the
/// kernel asks less and less often whether there is room (tcpi_probes: without an answer), so the last answer may be old.
bool LeaderLink::is_silent(os::Clock::time_point now, std::chrono::milliseconds silence) noexcept {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  const bool is_known = ::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0;
  if (!is_known || (info.tcpi_unacked == 0 && info.tcpi_probes == 0)) {
    unacknowledged_since_.reset();
    return false;
  }
  const auto last = now - std::chrono::milliseconds(info.tcpi_last_ack_recv);
  unacknowledged_since_ = std::max(last, unacknowledged_since_.value_or(now));
  return now - *unacknowledged_since_ >= silence;
}

// ---- all links ------------------------------------------------------------------------------------------------

LeaderLinks::LeaderLinks(std::string who, std::vector<LeaderLink> links, std::chrono::milliseconds silence)
    : who_(std::move(who)), links_(std::move(links)), silence_(silence) {
  for (LeaderLink& link : links_) link.ask_for_life(kIdle, silence_);
}

void LeaderLinks::begin(const protocol::RankSet& ranks, int own) {
  used_.clear();
  own_ = static_cast<std::size_t>(ranks.position_of(own));
  for (const int rank : ranks) {
    if (rank == own) continue;
    const auto link = std::ranges::find(links_, rank, &LeaderLink::rank);
    if (link == links_.end()) throw Error(ErrorKind::system, "there is no connection to rank " + std::to_string(rank));
    used_.push_back(&*link);
  }
}

void LeaderLinks::begin_exchange(std::uint64_t command, std::uint64_t step, std::span<const protocol::NodeBlock> blocks,
                                 std::byte* base) {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    LeaderLink& link = *used_[i];
    if (link.broken().empty() && !link.is_intact())
      throw text::descriptors_closed("the connection between " + who_ + " and " + link.who());
    const protocol::NodeBlock& block = blocks[i < own_ ? i : i + 1];
    link.begin({command, step, block.from_bytes}, base + block.from, base + block.to, block.to_bytes);
  }
  static_cast<void>(move());
}

bool LeaderLinks::move() {
  bool did_something = false;
  for (LeaderLink* const link : used_) did_something = (!link->is_done() && link->move()) || did_something;
  return did_something;
}

bool LeaderLinks::is_done() const noexcept { return std::ranges::all_of(used_, &LeaderLink::is_done); }

bool LeaderLinks::has_been_broken(os::Clock::time_point now) const noexcept {
  return std::ranges::any_of(
      used_, [&](const LeaderLink* link) { return !link->is_done() && link->broken_for(now) >= silence_; });
}

/// Until something can be sent or received, for a short time.
void LeaderLinks::sleep(std::chrono::milliseconds limit) const {
  std::vector<pollfd> awaited;
  for (const LeaderLink* const link : used_) {
    if (link->is_done() || !link->broken().empty()) continue;
    const bool awaits_input = !link->has_received() && !link->is_ahead();
    const auto events = static_cast<short>((awaits_input ? POLLIN : 0) | (link->has_sent() ? 0 : POLLOUT));
    if (events != 0) awaited.push_back({link->fd(), events, 0});
  }
  static_cast<void>(::poll(awaited.data(), awaited.size(), static_cast<int>(limit.count())));
}

/// Called from time to time in a long wait.
void LeaderLinks::look(os::Clock::time_point now, Caller& caller) {
  std::vector<bool> is_missing;
  for (LeaderLink* const link : used_) {
    is_missing.push_back(!link->is_done());
    if (link->is_done() || !link->broken().empty()) continue;
    link->ask_for_life(kIdleInLongWait, silence_);
    is_watching_ = true;
    if (link->is_silent(now, silence_)) link->note_broken("nothing is acknowledged any more", silence_);
  }
  is_missing.insert(is_missing.begin() + static_cast<std::ptrdiff_t>(own_), false);
  caller.note_long_wait(is_missing);
}

void LeaderLinks::stop_watching() noexcept {
  if (!std::exchange(is_watching_, false)) return;
  for (LeaderLink* const link : used_) link->ask_for_life(kIdle, silence_);
}

/// If a rank or a node was lost, that interrupts the wait soon, and says more than the end of the connection.
void LeaderLinks::throw_broken() const {
  const auto link = std::ranges::find_if(used_, [](const LeaderLink* one) { return !one->broken().empty(); });
  throw Error(ErrorKind::system, "the connection between " + who_ + " and " + (*link)->who() +
                                     " is broken: " + (*link)->broken() +
                                     ". Neither of the two ranks was lost, so look at the network "
                                     "between their hosts. With SYNCRUN_NODE_LINKS=off, ranks of different hosts have "
                                     "no connections of their own");
}

void LeaderLinks::end_exchange(os::WaitPolicy& policy, const process::WaitLimits& limits, Caller& caller) {
  static_cast<void>(move());
  if (is_done()) return;
  os::Patience patience = patience_of(limits);
  auto now = os::Clock::now();
  const auto awake_until = now + policy.awake_for;
  const auto spin_until = now + policy.spin_for;
  const auto short_until = now + kSleepsLongAfter;
  bool spins = policy.shall_spin();
  auto next_look = now + kLongWait;
  for (;;) {
    const bool has_moved = move();
    if (is_done()) break;
    if (has_moved) continue;
    if (limits.interruption.is_set()) limits.interruption.raise();
    if (caller.is_over()) break;
    now = os::Clock::now();
    if (spins && now >= spin_until) {
      policy.note_vain_spin();
      spins = false;
    }
    if (spins) {
      os::pause_briefly();
      continue;
    }
    if (has_been_broken(now)) throw_broken();
    if (now >= next_look) {
      look(now, caller);
      next_look = now + kLookEvery;
    }
    if (now < awake_until) {
      os::yield_core();
      continue;
    }
    if (patience.is_over(now)) throw_peers_late(limits);
    sleep(now < short_until ? kSleep : kLongSleep);
  }
  if (spins) policy.note_useful_spin();
  stop_watching();
}

}  // namespace syncrun::detail::worker::comm

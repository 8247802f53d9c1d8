#include "master/nodes/mpi/outgoing_messages.hpp"

#include <algorithm>
#include <utility>

#include "master/nodes/mpi/mpi_check.hpp"

namespace syncrun::detail::master::nodes::mpi {

void OutgoingMessages::send(std::vector<std::byte> message) {
  if (message.size() <= kPieceBytes) waiting_.push_back({.message = std::move(message)});
  else divide(std::make_shared<const std::vector<std::byte>>(std::move(message)));
  advance();
}

/// The parts leave from the memory of the message. A copy of a message of several GiB would take so long that the signs of
/// life, which need the lock too, would come too late.
void OutgoingMessages::divide(const Whole& whole) {
  ++divided_here_;
  ++divided_;
  const std::uint64_t size = whole->size();
  const auto size_bytes = std::as_bytes(std::span(&size, 1));
  waiting_.push_back({.message = {size_bytes.begin(), size_bytes.end()}, .tag = kPartsTag});
  for (std::span<const std::byte> rest(*whole); !rest.empty();) {
    const auto part = rest.first(std::min(rest.size(), kPieceBytes));
    rest = rest.subspan(part.size());
    waiting_.push_back({.tag = rest.empty() ? kMessageTag : kPartTag, .whole = whole, .part = part});
  }
}

void OutgoingMessages::advance() {
  for (; !leaving_.empty() && is_complete(leaving_.front().request, "send a message to", node_); leaving_.pop_front()) {
    Letter& letter = leaving_.front();
    large_leaving_ -= letter.is_large() ? 1 : 0;
    pieces_left_ += letter.is_small() ? 0 : 1;
    if (!letter.whole || letter.tag != kMessageTag) continue;
    left_.push_back(std::move(letter.whole));
    --divided_here_;
    --divided_;
  }
  send_waiting();
}

void OutgoingMessages::send_waiting() {
  while (!waiting_.empty()) {
    const bool is_large = waiting_.front().is_large();
    if (is_large && large_leaving_ == kPiecesUnderWay) return;
    // In a deque, the letter stays where it is. If the message cannot be sent, it is taken out again.
    Letter& letter = leaving_.emplace_back(std::move(waiting_.front()));
    waiting_.pop_front();
    const auto bytes = letter.bytes();
    const int code =
        MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, node_, letter.tag, comm_, &letter.request);
    if (code != MPI_SUCCESS) leaving_.pop_back();
    check_mpi(code, "send a message to", node_);
    ++sent_;
    large_leaving_ += is_large ? 1 : 0;
  }
}

void OutgoingMessages::cancel() noexcept {
  waiting_.clear();
  for (Letter& letter : leaving_) given_up_.push_back(std::move(letter));
  leaving_.clear();
  divided_ -= std::exchange(divided_here_, 0);
}

}  // namespace syncrun::detail::master::nodes::mpi

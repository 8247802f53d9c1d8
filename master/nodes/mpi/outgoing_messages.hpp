#pragma once

// The messages from this node to another one.

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "master/nodes/mpi/mpi_tags.hpp"

namespace syncrun::detail::master::nodes::mpi {

/// Messages leave in their order, and at most kPiecesUnderWay large ones or parts are with MPI at a time. Not safe for
/// several threads. send() and advance() throw Error (system), which names the node. The owner then calls cancel().
class OutgoingMessages {
 public:
  using Whole = std::shared_ptr<const std::vector<std::byte>>;
  /// `divided` counts the messages in parts that are under way. Messages in parts that have left go to `left`: to free
  /// them takes long.
  OutgoingMessages(MPI_Comm comm, int node, std::atomic<std::size_t>& divided, std::vector<Whole>& left)
      : comm_(comm), node_(node), divided_(divided), left_(left) {}

  void send(std::vector<std::byte> message);
  /// Forgets what has left, and sends what may leave now.
  void advance();
  bool is_empty() const noexcept { return waiting_.empty() && leaving_.empty(); }
  /// Nothing is sent any more. MPI cannot take back what it has begun to send, so it may still read this memory.
  void cancel() noexcept;
  /// How many MPI messages were sent.
  std::uint64_t sent() const noexcept { return sent_; }
  /// How many messages that are not small, and parts, have left.
  std::uint64_t pieces_left() const noexcept { return pieces_left_; }

 private:
  struct Letter {  // a message, or a part of a large one
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> message = {};
    int tag = kMessageTag;
    // of a part: the message, and where the part is in it
    Whole whole = nullptr;
    std::span<const std::byte> part = {};
    std::span<const std::byte> bytes() const noexcept { return whole ? part : std::span(message); }
    bool is_large() const noexcept { return bytes().size() >= kPieceBytes; }
    bool is_small() const noexcept { return bytes().size() <= kSmallBytes; }
  };
  void divide(const Whole& whole);
  void send_waiting();

  MPI_Comm comm_;
  int node_;
  std::atomic<std::size_t>& divided_;
  std::vector<Whole>& left_;
  std::deque<Letter> waiting_;   // MPI does not have them yet
  std::deque<Letter> leaving_;   // the oldest first
  std::deque<Letter> given_up_;  // of cancel()
  std::size_t large_leaving_ = 0;
  std::size_t divided_here_ = 0;  // how many of divided_ leave from here
  std::uint64_t sent_ = 0;
  std::uint64_t pieces_left_ = 0;
};

}  // namespace syncrun::detail::master::nodes::mpi

#pragma once

// The messages from another node to this one.

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace syncrun::detail::master::nodes::mpi {

/// Messages come out whole and in their order, and none after one that is missing. Not safe for several threads. take() and
/// next() throw Error (system), which names the node. The node is silent afterwards, as after cancel().
class IncomingMessages {
 public:
  using Message = std::vector<std::byte>;
  /// `divided` counts the messages in parts that are under way.
  IncomingMessages(int node, std::atomic<std::size_t>& divided) : node_(node), divided_(divided) {}

  /// Begins to receive an MPI message of the node that has been matched.
  void take(MPI_Message message, int tag, std::size_t bytes);
  /// The next message that is complete.
  std::optional<Message> next();
  /// How many messages and parts may still be arriving.
  std::size_t size() const noexcept { return arriving_.size(); }
  /// The node is silent from now on. MPI cannot take back what it has begun to receive, so it may still write this memory.
  void cancel() noexcept;
  /// Drops what is arriving. True if nothing is being received any more.
  bool drain();
  /// How many messages and parts have arrived.
  std::uint64_t pieces() const noexcept { return pieces_; }

 private:
  struct Letter {  // a message, or a part of a large one
    MPI_Request request = MPI_REQUEST_NULL;
    Message message;
    int tag;
  };
  struct Parts {  // all but the last part of a message
    Message message;
    std::uint64_t bytes;  // of the whole message, as announced
  };
  std::optional<Message> add(Letter letter);
  void begin_parts(std::span<const std::byte> announced);
  void forget_parts() noexcept;
  void drop_arriving();

  int node_;
  std::atomic<std::size_t>& divided_;
  bool is_silent_ = false;
  std::deque<Letter> arriving_;  // the oldest first
  std::deque<Letter> dropped_;   // no longer needed, but MPI may still write their memory
  std::optional<Parts> parts_;   // of the message that is arriving
  std::uint64_t pieces_ = 0;
};

}  // namespace syncrun::detail::master::nodes::mpi

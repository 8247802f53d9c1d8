#pragma once

// Messages and rows to other nodes, and rows from them.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace syncrun::detail::master::nodes {

/// Sends messages: whole, small, and in order from each node. The receiver does not know them before. No function waits.
/// The master and the agents use it.
class Sender {
 public:
  Sender() = default;
  virtual ~Sender() = default;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Sends a message, later if there is no room now. Throws Error (system) if the transport has failed.
  virtual void send(int node, std::vector<std::byte> message) = 0;
  /// The most bytes that a message may carry to leave at once, beside a header of up to 256 bytes. A larger message takes
  /// longer, because both sides have to take another turn. A sender divides what it can.
  virtual std::size_t prompt_bytes() const noexcept = 0;
  /// How long a wait lasts before note_wait_for() is called. Most commands are over before.
  static constexpr std::chrono::milliseconds kWatchAfter{200};
  /// A rank of this node waits for something from that node. The caller repeats this while the rank waits. If that node
  /// no longer answers, this one cannot continue. Any thread may call it.
  virtual void note_wait_for(int) noexcept {}
};

/// Also sends and receives bulk: both sides name the memory, and nothing is copied on the way if the engine allows it.
/// Bulk from one node arrives in the order in which both sides name it. A message tells the receiver what comes.
class Mailbox : public Sender {
 public:
  /// Names a transfer of bulk. 0 names none.
  using Ticket = std::uint64_t;

  /// Begins to send this memory. It stays as it is until the ticket is over.
  virtual Ticket send_bulk(int node, std::span<const std::byte> from) = 0;
  /// Begins to receive exactly as many bytes into this memory. Nobody else uses it until the ticket is over. Throws
  /// Error (system), here or in a later function, if the sender sends more.
  virtual Ticket receive_bulk(int node, std::span<std::byte> to) = 0;
  /// True if the transfer is complete, or if its node was abandoned. Makes progress with everything under way.
  virtual bool is_over(Ticket ticket) = 0;
};

}  // namespace syncrun::detail::master::nodes

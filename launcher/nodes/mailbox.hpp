#pragma once

// Messages and rows to and from other nodes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace syncrun::detail {

/// The master and the agents use it. There are two ways for bytes:
///   - messages: whole, small, and in order from each node. The receiver does not know them before.
///   - bulk: both sides name the memory, and nothing is copied on the way if the engine allows it. Bulk from one node
///     arrives in the order in which both sides name it. A message tells the receiver what comes.
/// No function waits. One thread may send while another one receives. A Transport implements it between machines.
class Mailbox {
 public:
  struct Received {
    int node;  // the sender
    std::vector<std::byte> message;
  };
  /// Names a transfer of bulk. 0 names none.
  using Ticket = std::uint64_t;

  Mailbox() = default;
  virtual ~Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Sends a message, later if there is no room now. Throws Error (system) if the transport has failed.
  virtual void send(int node, std::vector<std::byte> message) = 0;
  /// The next message that has arrived, or nothing. Throws Error (system) if the transport has failed.
  virtual std::optional<Received> receive() = 0;

  /// Begins to send this memory. It stays as it is until the ticket is over.
  virtual Ticket send_bulk(int node, std::span<const std::byte> from) = 0;
  /// Begins to receive exactly as many bytes into this memory. Nobody else uses it until the ticket is over. Throws
  /// Error (system), here or in a later function, if the sender sends more.
  virtual Ticket receive_bulk(int node, std::span<std::byte> to) = 0;
  /// True if the transfer is complete, or if its node was abandoned. Makes progress with everything under way.
  virtual bool is_over(Ticket ticket) = 0;
};

}  // namespace syncrun::detail

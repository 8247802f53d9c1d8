#pragma once

// Messages between the nodes of a session, over a network.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/os/wait.hpp"
#include "launcher/nodes/mailbox.hpp"

namespace syncrun::detail {

/// The master and the agents use it. There are two ways for bytes:
///   - messages (Mailbox): whole, small, and in order from each node. The receiver does not know them before. Those to
///     nodes that were abandoned are dropped. receive() also makes progress with everything under way.
///   - bulk: both sides name the memory, and nothing is copied on the way if the engine allows it. Bulk from one node
///     arrives in the order in which both sides name it. A message tells the receiver what comes.
/// No function but open() and close() waits, also if the other node is dead or its link is down. So the caller sets the
/// limits of time. Any thread may call any function. The functions exclude each other. All throw Error (system) if the
/// transport itself has failed. The error names the node if one is at fault.
class Transport : public Mailbox {
 public:
  /// Names a transfer of bulk. 0 names none.
  using Ticket = std::uint64_t;
  using Arrival = Received;

  /// Joins the other nodes. Called once, before anything else. The engine may wait in here without end, so somebody
  /// outside watches the time (StartWatchdog).
  virtual void open() = 0;
  /// The number of this node and the number of nodes. Known after open().
  virtual int node() const noexcept = 0;
  virtual int nodes() const noexcept = 0;
  /// The name and version of the engine: "Open MPI 4.1.4". For messages to users.
  virtual std::string description() const = 0;

  /// Begins to send this memory. It stays as it is until the ticket is over.
  virtual Ticket send_bulk(int node, std::span<const std::byte> from) = 0;
  /// Begins to receive exactly as many bytes into this memory. Nobody else uses it until the ticket is over. Throws
  /// Error (system), here or in a later function, if the sender sends more.
  virtual Ticket receive_bulk(int node, std::span<std::byte> to) = 0;
  /// True if the transfer is complete or was abandoned. Makes progress with everything under way.
  virtual bool is_over(Ticket ticket) = 0;

  /// Drops everything under way to and from a node. Nothing is received from it any more.
  virtual void abandon(int node) noexcept = 0;
  /// Leaves in order: waits until what was sent has left, receives and drops what comes, and ends the engine together
  /// with the other nodes. Returns false if this took longer than `grace`, or if a node was abandoned. The process then
  /// has to end with _exit().
  virtual bool close(Milliseconds grace) noexcept = 0;
};

}  // namespace syncrun::detail

#pragma once

// Messages between the nodes of a session, over a network.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/os/wait.hpp"
#include "master/nodes/attendance.hpp"
#include "master/nodes/mailbox.hpp"

namespace syncrun::detail::master::nodes {

/// A mailbox between machines. No function but open() and close() waits, also if the other node is dead or its link is
/// down. So the caller sets the limits of time. receive() also makes progress with everything under way. Any thread may call
/// any function. The functions exclude each other. All throw Error (system) if the transport itself has failed. The error
/// names the node if one is at fault.
class Transport : public Mailbox {
 public:
  struct Arrival {
    int node;  // the sender
    std::vector<std::byte> message;
  };

  /// Joins the other nodes. Called once, before anything else. The engine may wait in here without end, so somebody
  /// outside watches the time (StartWatchdog).
  virtual void open() = 0;
  /// Which nodes have come, if open() takes too long. `node` and `nodes` are those that the engine has told. Called by
  /// another thread than that in open(), which may never return then: the process has to end. Takes a few
  /// seconds at most. Returns nothing if the engine does not say it.
  virtual std::optional<Attendance> attendance(int node, int nodes) {
    static_cast<void>(node);
    static_cast<void>(nodes);
    return std::nullopt;
  }
  /// The number of this node and the number of nodes. Known after open().
  virtual int node() const noexcept = 0;
  virtual int nodes() const noexcept = 0;
  /// The name and version of the engine: "Open MPI 4.1.4". For messages to users.
  virtual std::string description() const = 0;

  /// The next message that has arrived, or nothing. Throws Error (system) if the transport has failed.
  virtual std::optional<Arrival> receive() = 0;
  /// How many pieces of large messages and of bulk have arrived from a node. They show that the node is alive, although a
  /// sign of life has to wait behind them.
  virtual std::uint64_t pieces_from(int node) noexcept = 0;
  /// How many messages that are not small, and parts of large ones, have left for a node. They show that the link works,
  /// although a ping has to wait behind them.
  virtual std::uint64_t pieces_to(int node) noexcept = 0;
  /// Whether parts of large messages are under way. The engine moves them only when it is called.
  virtual bool has_parts_under_way() const noexcept { return false; }
  /// Drops everything under way to and from a node, and what is sent to it later. Nothing is received from it any more.
  virtual void abandon(int node) noexcept = 0;
  /// Leaves in order: waits until what was sent has left, receives and drops what comes, and ends the engine together
  /// with the other nodes. Returns false if this took longer than `grace`, or if a node was abandoned. The process then
  /// has to end with _exit().
  virtual bool close(os::Milliseconds grace) noexcept = 0;
};

}  // namespace syncrun::detail::master::nodes

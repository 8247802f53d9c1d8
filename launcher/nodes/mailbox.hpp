#pragma once

// Whole messages to and from other nodes.

#include <cstddef>
#include <optional>
#include <vector>

namespace syncrun::detail {

/// The master and the agents use it. Messages from one node arrive whole and in order. No function waits. One thread may
/// send while another one receives. A Transport implements it between machines.
class Mailbox {
 public:
  struct Received {
    int node;  // the sender
    std::vector<std::byte> message;
  };

  Mailbox() = default;
  virtual ~Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Sends a message, later if there is no room now. Throws Error (system) if the transport has failed.
  virtual void send(int node, std::vector<std::byte> message) = 0;
  /// The next message that has arrived, or nothing. Throws Error (system) if the transport has failed.
  virtual std::optional<Received> receive() = 0;
};

}  // namespace syncrun::detail

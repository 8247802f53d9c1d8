#pragma once

// A transport between nodes of one process. The test decides what arrives and when, and stops, kills and cuts off
// nodes. There are no threads and no clocks in it (close() excepted), so a test runs in the same way each time.
//
//   FakeNetwork network(3);
//   network.hold_back(1, 0);
//   network.at(1).send(0, message);  // network.at(0) does not receive it yet

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "master/nodes/transport.hpp"

namespace syncrun::test {

class FakeTransport;

/// The nodes and the links between them. A link has a direction. Any thread may call any function.
class FakeNetwork {
 public:
  explicit FakeNetwork(int nodes);
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  /// The transport of a node. The network owns it, or the caller. open() does nothing.
  detail::master::nodes::Transport& at(int node);
  std::unique_ptr<detail::master::nodes::Transport> own(int node);

  /// What one node sends to the other waits from now on, until release(). This includes bulk.
  void hold_back(int from, int to);
  void release(int from, int to);
  /// A piece of something large arrives. Nothing is there to receive yet.
  void pass_piece(int from, int to);
  /// Nothing passes either way any more. What is under way is lost. Neither node notices.
  void lose(int one, int other);
  /// The node's functions do nothing, as if its process were stopped: it receives nothing, and what it sends waits. What
  /// was sent before still arrives. What is sent to it waits.
  void stop(int node);
  void resume(int node);
  /// The node's functions do nothing for ever. What it sent before still arrives. The other nodes do not notice.
  void kill(int node);

  /// How many messages and how many bytes a node has sent, without bulk, and the size of its largest message.
  std::size_t messages_sent(int node) const;
  std::size_t bytes_sent(int node) const;
  std::size_t largest_message(int node) const;

  /// Called with each message before it is sent, by the thread that sends it. Not changed while a thread may send.
  std::function<void(std::span<const std::byte>)> on_send;
  std::size_t prompt_bytes = std::size_t{60} << 10U;

 private:
  friend class FakeTransport;
  using Ticket = detail::master::nodes::Transport::Ticket;
  struct OutgoingTransfer {
    Ticket ticket;
    std::span<const std::byte> memory;
  };
  struct IncomingTransfer {
    Ticket ticket;
    std::span<std::byte> memory;
  };
  struct Link {
    bool is_held_back = false;
    bool is_lost = false;
    std::uint64_t pieces = 0;
    std::deque<std::vector<std::byte>> messages;
    std::deque<OutgoingTransfer> outgoing;
    std::deque<IncomingTransfer> incoming;
  };
  enum class Life { runs, stopped, killed };
  struct Node {
    std::unique_ptr<FakeTransport> transport;
    Life life = Life::runs;
    bool is_closing = false;
    std::vector<bool> has_abandoned;                              // by node
    std::deque<std::string> errors;                               // its next functions throw them
    std::vector<std::pair<int, std::vector<std::byte>>> waiting;  // messages of a stopped node, with the receiver
    std::size_t messages_sent = 0;
    std::size_t bytes_sent = 0;
    std::size_t largest_message = 0;
    int next_sender = 0;  // where the search for the next message begins
  };
  Link& link(int from, int to) {
    return links_[static_cast<std::size_t>(from) * nodes_.size() + static_cast<std::size_t>(to)];
  }
  Node& node(int number) { return nodes_[static_cast<std::size_t>(number)]; }
  const Node& node(int number) const { return nodes_[static_cast<std::size_t>(number)]; }
  int count() const noexcept { return static_cast<int>(nodes_.size()); }
  bool passes(int from, int to);
  bool is_under_way(Ticket ticket) const;
  void move_bulk();
  void throw_error_of(int number);

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // for close()
  std::vector<Node> nodes_;
  std::vector<Link> links_;
  Ticket last_ticket_ = 0;
  std::size_t outgoing_ = 0;  // transfers on all links, so that messages alone take little time
};

}  // namespace syncrun::test

#pragma once

// The fake transport with a clock of its own for each node. Nothing waits: a message costs time on the clocks of its
// sender and its receiver, and on the way between them. So the times of a run do not depend on the machine.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <vector>

#include "master/nodes/mailbox.hpp"
#include "tests/master/nodes/fake_transport.hpp"

namespace syncrun::test {

/// What messages cost.
struct NetworkCosts {
  std::chrono::nanoseconds overhead;  // of the sender for a message, and of the receiver
  std::chrono::nanoseconds latency;   // on the way
  double bytes_per_ns;                // each side takes this long for the bytes, in addition to the overhead
};

class TimedNetwork {
 public:
  using Time = std::chrono::nanoseconds;
  using OnMessage = std::function<void(int node, const detail::master::nodes::Transport::Arrival& received)>;

  TimedNetwork(int nodes, NetworkCosts costs);
  TimedNetwork(const TimedNetwork&) = delete;
  TimedNetwork& operator=(const TimedNetwork&) = delete;

  /// The mailbox of a node, without bulk.
  detail::master::nodes::Mailbox& at(int node) { return boxes_[static_cast<std::size_t>(node)]; }
  Time now(int node) const { return clocks_[static_cast<std::size_t>(node)]; }
  /// The node is busy for this long.
  void spend(int node, Time time) { clocks_[static_cast<std::size_t>(node)] += time; }
  /// The node does this after `delay`, or as soon as it is no longer busy then.
  void after(int node, Time delay, std::function<void()> action);
  /// Hands out messages and does actions in the order of their times, until none are left. A node does one thing at a
  /// time.
  void run(const OnMessage& on_message);

  std::size_t messages_sent(int node) const { return network_.messages_sent(node); }
  std::size_t bytes_sent(int node) const { return network_.bytes_sent(node); }

 private:
  class Box final : public detail::master::nodes::Mailbox {
   public:
    Box(TimedNetwork& network, int node) : network_(network), node_(node) {}
    void send(int node, std::vector<std::byte> message) override { network_.send(node_, node, std::move(message)); }
    std::size_t prompt_bytes() const noexcept override { return std::size_t{60} << 10U; }
    Ticket send_bulk(int node, std::span<const std::byte> from) override;
    Ticket receive_bulk(int node, std::span<std::byte> to) override;
    bool is_over(Ticket) override { return true; }

   private:
    TimedNetwork& network_;
    int node_;
  };
  struct Event {
    Time due;
    std::uint64_t number;  // of events that are due at the same time, the first to be noted comes first
    int node;
    int sender;                    // of a message; -1 for an action
    std::function<void()> action;  // empty for a message
  };
  struct IsLater {
    bool operator()(const Event& one, const Event& other) const noexcept {
      return one.due != other.due ? one.due > other.due : one.number > other.number;
    }
  };
  void send(int from, int to, std::vector<std::byte> message);
  detail::master::nodes::Transport::Arrival receive(int from, int to);
  Time cost_of(std::size_t bytes) const;

  FakeNetwork network_;
  NetworkCosts costs_;
  std::deque<Box> boxes_;
  std::vector<Time> clocks_;  // until when each node is busy
  std::priority_queue<Event, std::vector<Event>, IsLater> events_;
  std::uint64_t noted_ = 0;
};

}  // namespace syncrun::test

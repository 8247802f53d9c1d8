#include "tests/master/nodes/simulation/timed_network.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace syncrun::test {

detail::master::nodes::Mailbox::Ticket TimedNetwork::Box::send_bulk(int, std::span<const std::byte>) {
  throw std::logic_error("bulk has no time in this network");
}

detail::master::nodes::Mailbox::Ticket TimedNetwork::Box::receive_bulk(int, std::span<std::byte>) {
  throw std::logic_error("bulk has no time in this network");
}

TimedNetwork::TimedNetwork(int nodes, NetworkCosts costs)
    : network_(nodes), costs_(costs), clocks_(static_cast<std::size_t>(nodes)) {
  for (int node = 0; node < nodes; ++node) {
    boxes_.emplace_back(*this, node);
    for (int other = 0; other < nodes; ++other) network_.hold_back(node, other);
  }
}

TimedNetwork::Time TimedNetwork::cost_of(std::size_t bytes) const {
  return costs_.overhead + Time(static_cast<std::int64_t>(static_cast<double>(bytes) / costs_.bytes_per_ns));
}

void TimedNetwork::send(int from, int to, std::vector<std::byte> message) {
  spend(from, cost_of(message.size()));
  network_.at(from).send(to, std::move(message));
  events_.push({now(from) + costs_.latency, ++noted_, to, from, {}});
}

/// The first message on this link. Messages on a link arrive in the order in which they were sent.
detail::master::nodes::Transport::Arrival TimedNetwork::receive(int from, int to) {
  network_.release(from, to);
  auto received = network_.at(to).receive();
  network_.hold_back(from, to);
  spend(to, cost_of(received->message.size()));
  return std::move(*received);
}

void TimedNetwork::after(int node, Time delay, std::function<void()> action) {
  events_.push({now(node) + delay, ++noted_, node, -1, std::move(action)});
}

void TimedNetwork::run(const OnMessage& on_message) {
  while (!events_.empty()) {
    const Event next = events_.top();
    events_.pop();
    Time& clock = clocks_[static_cast<std::size_t>(next.node)];
    clock = std::max(clock, next.due);
    if (next.action) next.action();
    else on_message(next.node, receive(next.sender, next.node));
  }
}

}  // namespace syncrun::test

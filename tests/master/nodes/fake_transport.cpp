#include "tests/master/nodes/fake_transport.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::test {

class FakeTransport final : public detail::master::nodes::Transport {
 public:
  FakeTransport(FakeNetwork& network, int node) : network_(network), node_(node) {}

  void open() override {}
  int node() const noexcept override { return node_; }
  int nodes() const noexcept override { return network_.count(); }
  std::string description() const override { return "a fake transport"; }
  void send(int node, std::vector<std::byte> message) override;
  std::size_t prompt_bytes() const noexcept override { return network_.prompt_bytes; }
  std::optional<Arrival> receive() override;
  Ticket send_bulk(int node, std::span<const std::byte> from) override;
  Ticket receive_bulk(int node, std::span<std::byte> to) override;
  bool is_over(Ticket ticket) override;
  std::uint64_t pieces_from(int node) noexcept override;
  std::uint64_t pieces_to(int node) noexcept override;
  void abandon(int node) noexcept override;
  bool close(detail::os::Milliseconds grace) noexcept override;

 private:
  FakeNetwork::Node& self() { return network_.node(node_); }
  bool is_dropped(int other) {
    return self().life == FakeNetwork::Life::killed || self().has_abandoned[static_cast<std::size_t>(other)] ||
           network_.link(node_, other).is_lost;
  }
  bool has_abandoned_any() {
    const auto& abandoned = self().has_abandoned;
    return std::find(abandoned.begin(), abandoned.end(), true) != abandoned.end();
  }

  FakeNetwork& network_;
  int node_;
};

// ---- the transport of a node

void FakeTransport::send(int node, std::vector<std::byte> message) {
  if (network_.on_send) network_.on_send(message);
  const std::lock_guard lock(network_.mutex_);
  network_.throw_error_of(node_);
  if (is_dropped(node)) return;
  ++self().messages_sent;
  self().bytes_sent += message.size();
  self().largest_message = std::max(self().largest_message, message.size());
  if (self().life == FakeNetwork::Life::stopped) {
    self().waiting.emplace_back(node, std::move(message));
    return;
  }
  network_.link(node_, node).messages.push_back(std::move(message));
}

std::optional<detail::master::nodes::Transport::Arrival> FakeTransport::receive() {
  const std::lock_guard lock(network_.mutex_);
  if (self().life != FakeNetwork::Life::runs) return std::nullopt;
  network_.move_bulk();
  network_.throw_error_of(node_);
  for (int i = 0; i < nodes(); ++i) {
    const int from = (self().next_sender + i) % nodes();
    auto& messages = network_.link(from, node_).messages;
    if (self().has_abandoned[static_cast<std::size_t>(from)]) messages.clear();
    if (messages.empty() || !network_.passes(from, node_)) continue;
    Arrival arrival{from, std::move(messages.front())};
    messages.pop_front();
    self().next_sender = (from + 1) % nodes();
    return arrival;
  }
  return std::nullopt;
}

detail::master::nodes::Transport::Ticket FakeTransport::send_bulk(int node, std::span<const std::byte> from) {
  const std::lock_guard lock(network_.mutex_);
  network_.throw_error_of(node_);
  if (self().has_abandoned[static_cast<std::size_t>(node)]) return 0;
  const Ticket ticket = ++network_.last_ticket_;
  network_.link(node_, node).outgoing.push_back({ticket, from});
  ++network_.outgoing_;
  return ticket;
}

detail::master::nodes::Transport::Ticket FakeTransport::receive_bulk(int node, std::span<std::byte> to) {
  const std::lock_guard lock(network_.mutex_);
  network_.throw_error_of(node_);
  if (self().has_abandoned[static_cast<std::size_t>(node)]) return 0;
  const Ticket ticket = ++network_.last_ticket_;
  network_.link(node, node_).incoming.push_back({ticket, to});
  return ticket;
}

bool FakeTransport::is_over(Ticket ticket) {
  const std::lock_guard lock(network_.mutex_);
  if (self().life == FakeNetwork::Life::runs) network_.move_bulk();
  network_.throw_error_of(node_);
  return !network_.is_under_way(ticket);
}

std::uint64_t FakeTransport::pieces_from(int node) noexcept {
  const std::lock_guard lock(network_.mutex_);
  return network_.link(node, node_).pieces;
}

std::uint64_t FakeTransport::pieces_to(int node) noexcept {
  const std::lock_guard lock(network_.mutex_);
  return network_.link(node_, node).pieces;
}

void FakeTransport::abandon(int node) noexcept {
  const std::lock_guard lock(network_.mutex_);
  self().has_abandoned[static_cast<std::size_t>(node)] = true;
  network_.link(node, node_).messages.clear();
  network_.link(node, node_).incoming.clear();
  network_.link(node_, node).messages.clear();
  network_.outgoing_ -= network_.link(node_, node).outgoing.size();
  network_.link(node_, node).outgoing.clear();
}

bool FakeTransport::close(detail::os::Milliseconds grace) noexcept {
  std::unique_lock lock(network_.mutex_);
  if (self().life != FakeNetwork::Life::runs) return false;
  self().is_closing = true;
  network_.changed_.notify_all();
  if (has_abandoned_any()) return false;
  return network_.changed_.wait_for(lock, grace, [this] {
    for (int other = 0; other < nodes(); ++other) {
      if (!network_.node(other).is_closing || network_.link(other, node_).is_lost) return false;
    }
    return true;
  });
}

// ---- the network

FakeNetwork::FakeNetwork(int nodes)
    : nodes_(static_cast<std::size_t>(nodes)),
      links_(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(nodes)) {
  for (int number = 0; number < nodes; ++number) {
    node(number).transport = std::make_unique<FakeTransport>(*this, number);
    node(number).has_abandoned.resize(static_cast<std::size_t>(nodes));
  }
}

FakeNetwork::~FakeNetwork() = default;

detail::master::nodes::Transport& FakeNetwork::at(int number) { return *node(number).transport; }

std::unique_ptr<detail::master::nodes::Transport> FakeNetwork::own(int number) {
  return std::make_unique<FakeTransport>(*this, number);
}

void FakeNetwork::hold_back(int from, int to) {
  const std::lock_guard lock(mutex_);
  link(from, to).is_held_back = true;
}

void FakeNetwork::pass_piece(int from, int to) {
  const std::lock_guard lock(mutex_);
  ++link(from, to).pieces;
}

void FakeNetwork::release(int from, int to) {
  const std::lock_guard lock(mutex_);
  link(from, to).is_held_back = false;
}

void FakeNetwork::lose(int one, int other) {
  const std::lock_guard lock(mutex_);
  for (Link* lost : {&link(one, other), &link(other, one)}) {
    lost->is_lost = true;
    lost->messages.clear();
  }
}

void FakeNetwork::stop(int number) {
  const std::lock_guard lock(mutex_);
  if (node(number).life == Life::runs) node(number).life = Life::stopped;
}

void FakeNetwork::resume(int number) {
  const std::lock_guard lock(mutex_);
  if (node(number).life != Life::stopped) return;
  node(number).life = Life::runs;
  for (auto& [to, message] : std::exchange(node(number).waiting, {})) {
    if (!link(number, to).is_lost) link(number, to).messages.push_back(std::move(message));
  }
}

void FakeNetwork::kill(int number) {
  const std::lock_guard lock(mutex_);
  node(number).life = Life::killed;
}

std::size_t FakeNetwork::messages_sent(int number) const {
  const std::lock_guard lock(mutex_);
  return node(number).messages_sent;
}

std::size_t FakeNetwork::bytes_sent(int number) const {
  const std::lock_guard lock(mutex_);
  return node(number).bytes_sent;
}

std::size_t FakeNetwork::largest_message(int number) const {
  const std::lock_guard lock(mutex_);
  return node(number).largest_message;
}

bool FakeNetwork::passes(int from, int to) { return !link(from, to).is_held_back && !link(from, to).is_lost; }

bool FakeNetwork::is_under_way(Ticket ticket) const {
  const auto has_ticket = [ticket](const auto& transfer) { return transfer.ticket == ticket; };
  return std::any_of(links_.begin(), links_.end(), [&](const Link& each) {
    return std::any_of(each.outgoing.begin(), each.outgoing.end(), has_ticket) ||
           std::any_of(each.incoming.begin(), each.incoming.end(), has_ticket);
  });
}

/// Moves the bulk for which both sides have named memory. Both have to run: the memory of a process that is stopped or
/// dead is not touched.
void FakeNetwork::move_bulk() {
  if (outgoing_ == 0) return;
  for (int from = 0; from < count(); ++from) {
    for (int to = 0; to < count(); ++to) {
      Link& both = link(from, to);
      while (!both.outgoing.empty() && !both.incoming.empty() && passes(from, to) && node(from).life == Life::runs &&
             node(to).life == Life::runs) {
        const auto source = both.outgoing.front().memory;
        const auto target = both.incoming.front().memory;
        if (source.size() == target.size()) {
          if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
        } else {
          node(to).errors.push_back("node " + std::to_string(from) + " sent bulk of another size: expected " +
                                    std::to_string(target.size()) + " bytes, got " + std::to_string(source.size()));
        }
        both.outgoing.pop_front();
        --outgoing_;
        both.incoming.pop_front();
      }
    }
  }
}

void FakeNetwork::throw_error_of(int number) {
  auto& errors = node(number).errors;
  if (errors.empty()) return;
  const std::string error = std::move(errors.front());
  errors.pop_front();
  throw Error(ErrorKind::system, error);
}

}  // namespace syncrun::test

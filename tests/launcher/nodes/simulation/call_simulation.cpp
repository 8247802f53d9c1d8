#include "tests/launcher/nodes/simulation/call_simulation.hpp"

#include <algorithm>
#include <deque>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "launcher/calls/call_table.hpp"
#include "launcher/nodes/agent.hpp"
#include "launcher/nodes/relay.hpp"
#include "launcher/nodes/remote_nodes.hpp"

namespace syncrun::test {

namespace {

using namespace detail;

constexpr std::size_t kPageBytes = 4096;

/// The memory of a node: a control block, and nothing else. Pages that are not used take no memory.
struct NodeMemory {
  NodeMemory(const NodePlace& place, int world_size)
      : bytes((ControlBlock::bytes(world_size) / kPageBytes + 1) * kPageBytes),
        segment(Segment::create(bytes, bytes)),
        control(segment.base(), world_size) {
    control.header().world_size = static_cast<std::uint32_t>(world_size);
    control.header().place = place;
  }
  std::size_t bytes;
  Segment segment;
  ControlBlock control;
};

/// The ranks of this node have done nothing, with success.
void finish_here(const ControlBlock& control, std::uint64_t id, std::size_t slot) {
  const NodePlace& here = control.header().place;
  for (int local_rank = 0; local_rank < here.local_size; ++local_rank) {
    const int rank = here.rank(local_rank);
    control.outbox(control.command_in(slot), rank).vote = Vote::ok;
    control.worker(rank).done.store(id);
  }
}

/// A node of the session other than the master's.
class AgentNode {
 public:
  AgentNode(TimedNetwork& network, const NodePlace& place, int world_size, const NodeTree* tree,
            std::chrono::nanoseconds workers)
      : network_(network), node_(place.node), memory_(place, world_size), workers_(workers) {
    if (tree != nullptr) relay_.emplace(network.at(node_), *tree, node_);
    agent_.emplace(network.at(node_), memory_.control, memory_.segment, nullptr, nullptr, relay_ ? &*relay_ : nullptr);
  }

  void take(const Mailbox::Received& received) {
    MessageReader message(received.message, "node " + std::to_string(received.node));
    if (message.kind() == MessageKind::reports) {
      relay_->take_reports(message);
    } else if (message.kind() == MessageKind::bundle) {
      if (const auto own = relay_->take_bundle(message)) give(*own);
    } else {
      give(received.message);
    }
  }

 private:
  void give(const std::vector<std::byte>& command) {
    MessageReader message(command, "the master");
    agent_->take(message);
    // The workers of an idle session find the command in the next place of their inboxes.
    const int rank = memory_.control.header().place.first_rank;
    const InboxEntry entry(memory_.control.inbox(rank, received_++ % kInboxSize).load());
    if (entry.command() <= last_) throw std::logic_error("the workers have not got the command");
    last_ = entry.command();
    network_.after(node_, workers_, [this, entry] {
      finish_here(memory_.control, entry.command(), entry.slot());
      agent_->report();
    });
  }

  TimedNetwork& network_;
  int node_;
  NodeMemory memory_;
  std::chrono::nanoseconds workers_;
  std::optional<Relay> relay_;
  std::optional<Agent> agent_;
  std::uint64_t received_ = 0;  // commands so far
  std::uint64_t last_ = 0;      // the number of the last one
};

/// All nodes, and the program in the master.
class Simulation {
 public:
  explicit Simulation(const SimulatedSession& session)
      : session_(session),
        world_size_(session.nodes * session.ranks_of_each),
        network_(session.nodes, session.network),
        memory_(place_of(0), world_size_) {
    if (session.fan_out) tree_.emplace(session.nodes, *session.fan_out);
    if (tree_) root_.emplace(network_.at(0), *tree_);
    std::vector<NodePlace> places;
    for (int node = 0; node < session.nodes; ++node) places.push_back(place_of(node));
    remote_.emplace(network_.at(0), memory_.control, RemoteNodes::Memory{memory_.segment, inbound_}, places, nullptr,
                    nullptr, root_ ? &*root_ : nullptr);
    for (int node = 1; node < session.nodes; ++node)
      agents_.emplace_back(network_, places[static_cast<std::size_t>(node)], world_size_, tree_ ? &*tree_ : nullptr,
                           session.workers);
    calls_.attach(memory_.control);
  }

  SimulatedCall call() {
    const auto messages = network_.messages_sent(0);
    const auto bytes = network_.bytes_sent(0);
    const auto reported = network_.bytes_sent(1);
    const auto begin = network_.now(0);
    network_.spend(0, session_.here);
    const auto code_begin = Clock::now();
    calls_.next(calls_.all_ranks(), Milliseconds(0)).begin<CallPayload>();
    const auto id = calls_.publish();
    remote_->publish(id, calls_.slot_of(id));
    const auto send_code = Clock::now() - code_begin;
    take_code_ = {};
    finish_here(memory_.control, id, calls_.slot_of(id));
    network_.run([this](int node, const Mailbox::Received& received) {
      node == 0 ? take(received) : agents_[static_cast<std::size_t>(node) - 1].take(received);
    });
    const auto end_begin = Clock::now();
    if (!calls_.is_complete(id) || calls_.has_failed(id)) throw std::logic_error("a simulated call did not finish");
    calls_.release(id, nullptr);
    take_code_ += Clock::now() - end_begin;
    // Nothing comes after the last report. So the clock of the master has the time at which the call was complete.
    return {network_.now(0) - begin,
            network_.messages_sent(0) - messages,
            network_.bytes_sent(0) - bytes,
            network_.bytes_sent(1) - reported,
            send_code,
            take_code_};
  }

 private:
  NodePlace place_of(int node) const noexcept {
    return {node, session_.nodes, node * session_.ranks_of_each, session_.ranks_of_each};
  }
  void take(const Mailbox::Received& received) {
    const auto code_begin = Clock::now();
    MessageReader message(received.message, "node " + std::to_string(received.node));
    if (message.kind() == MessageKind::reports) {
      for_each_report(message, [this](int, std::span<const std::byte> bytes) {
        MessageReader report(bytes, "an agent");
        remote_->take_done(report);
      });
    } else {
      remote_->take_done(message);
    }
    take_code_ += Clock::now() - code_begin;
  }

  SimulatedSession session_;
  int world_size_;
  TimedNetwork network_;
  NodeMemory memory_;
  std::optional<NodeTree> tree_;
  std::optional<RelayRoot> root_;
  SharedHeap inbound_;  // no call here has arrays as results
  std::optional<RemoteNodes> remote_;
  std::deque<AgentNode> agents_;
  CallTable calls_;
  std::chrono::nanoseconds take_code_{};
};

}  // namespace

SimulatedCall simulate_empty_calls(const SimulatedSession& session, int calls) {
  Simulation simulation(session);
  SimulatedCall last = simulation.call();
  for (int i = 1; i < calls; ++i) {
    const SimulatedCall before = last;
    last = simulation.call();
    last.send_code = std::min(last.send_code, before.send_code);
    last.take_code = std::min(last.take_code, before.take_code);
  }
  return last;
}

}  // namespace syncrun::test

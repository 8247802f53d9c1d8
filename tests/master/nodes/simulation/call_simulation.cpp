#include "tests/master/nodes/simulation/call_simulation.hpp"

#include <algorithm>
#include <deque>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "master/calls/command_table.hpp"
#include "master/nodes/agent.hpp"
#include "master/nodes/relay.hpp"
#include "master/nodes/remote_nodes.hpp"

namespace syncrun::test {

namespace {

using namespace detail;

constexpr std::size_t kPageBytes = 4096;

/// The memory of a node: a control block, and nothing else. Pages that are not used take no memory.
struct NodeMemory {
  NodeMemory(const protocol::NodePlace& place, int world_size)
      : bytes((protocol::ControlBlock::bytes(world_size) / kPageBytes + 1) * kPageBytes),
        segment(os::Segment::create(bytes, bytes)),
        control(segment.base(), world_size) {
    control.header().world_size = static_cast<std::uint32_t>(world_size);
    control.header().place = place;
  }
  std::size_t bytes;
  os::Segment segment;
  protocol::ControlBlock control;
};

/// The ranks of this node have done nothing, with success.
void finish_here(const protocol::ControlBlock& control, std::uint64_t id, std::size_t slot) {
  const protocol::NodePlace& here = control.header().place;
  for (int local_rank = 0; local_rank < here.local_size; ++local_rank) {
    const int rank = here.rank(local_rank);
    control.outbox(control.command_in(slot), rank).vote = protocol::Vote::ok;
    control.worker(rank).done.store(id);
  }
}

/// A node of the session other than the master's.
class AgentNode {
 public:
  AgentNode(TimedNetwork& network, const protocol::NodePlace& place, int world_size,
            const master::nodes::NodeTree* tree, std::chrono::nanoseconds workers)
      : network_(network), node_(place.node), memory_(place, world_size), workers_(workers) {
    if (tree != nullptr) relay_.emplace(network.at(node_), *tree, node_);
    agent_.emplace(network.at(node_), memory_.control, memory_.segment, nullptr, nullptr, relay_ ? &*relay_ : nullptr);
  }

  void take(const master::nodes::Transport::Arrival& received) {
    master::nodes::MessageReader message(received.message, "node " + std::to_string(received.node));
    if (message.kind() == master::nodes::MessageKind::reports) {
      relay_->take_reports(message);
    } else if (message.kind() == master::nodes::MessageKind::bundle) {
      if (const auto own = relay_->take_bundle(message)) give(*own);
    } else {
      give(received.message);
    }
  }

 private:
  void give(const std::vector<std::byte>& command) {
    master::nodes::MessageReader message(command, "the master");
    agent_->take(message);
    // The workers of an idle session find the command in the next place of their inboxes.
    const int rank = memory_.control.header().place.first_rank;
    const protocol::InboxEntry entry(memory_.control.inbox(rank, received_++ % protocol::kInboxSize).load());
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
  std::optional<master::nodes::Relay> relay_;
  std::optional<master::nodes::Agent> agent_;
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
    std::vector<protocol::NodePlace> places;
    for (int node = 0; node < session.nodes; ++node) places.push_back(place_of(node));
    remote_.emplace(network_.at(0), memory_.control, master::nodes::RemoteNodes::Memory{memory_.segment, inbound_},
                    places, nullptr, nullptr, root_ ? &*root_ : nullptr);
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
    const auto code_begin = os::Clock::now();
    calls_.next(calls_.all_ranks(), os::Milliseconds(0)).begin<protocol::CallPayload>();
    const auto id = calls_.publish();
    remote_->publish(id, calls_.slot_of(id));
    const auto send_code = os::Clock::now() - code_begin;
    take_code_ = {};
    finish_here(memory_.control, id, calls_.slot_of(id));
    network_.run([this](int node, const master::nodes::Transport::Arrival& received) {
      node == 0 ? take(received) : agents_[static_cast<std::size_t>(node) - 1].take(received);
    });
    const auto end_begin = os::Clock::now();
    if (!calls_.is_complete(id) || calls_.has_failed(id)) throw std::logic_error("a simulated call did not finish");
    calls_.release(id, nullptr);
    take_code_ += os::Clock::now() - end_begin;
    // Nothing comes after the last report. So the clock of the master has the time at which the call was complete.
    return {network_.now(0) - begin,
            network_.messages_sent(0) - messages,
            network_.bytes_sent(0) - bytes,
            network_.bytes_sent(1) - reported,
            send_code,
            take_code_};
  }

 private:
  protocol::NodePlace place_of(int node) const noexcept {
    return {node, session_.nodes, node * session_.ranks_of_each, session_.ranks_of_each};
  }
  void take(const master::nodes::Transport::Arrival& received) {
    const auto code_begin = os::Clock::now();
    master::nodes::MessageReader message(received.message, "node " + std::to_string(received.node));
    if (message.kind() == master::nodes::MessageKind::reports) {
      master::nodes::for_each_report(message, [this](int, std::span<const std::byte> bytes) {
        master::nodes::MessageReader report(bytes, "an agent");
        remote_->take_done(report);
      });
    } else {
      remote_->take_done(message);
    }
    take_code_ += os::Clock::now() - code_begin;
  }

  SimulatedSession session_;
  int world_size_;
  TimedNetwork network_;
  NodeMemory memory_;
  std::optional<master::nodes::NodeTree> tree_;
  std::optional<master::nodes::RelayRoot> root_;
  os::SharedHeap inbound_;  // no call here has arrays as results
  std::optional<master::nodes::RemoteNodes> remote_;
  std::deque<AgentNode> agents_;
  master::calls::CommandTable calls_;
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

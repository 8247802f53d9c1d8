#pragma once

// Nodes of a session in one process, without workers. Each has a segment of its own. The test does in the control blocks
// what the ranks would do, and a fake network carries the messages.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "common/os/heap_log.hpp"
#include "common/protocol/control_block.hpp"
#include "master/calls/command_table.hpp"
#include "master/nodes/messages.hpp"
#include "master/nodes/remote_nodes.hpp"
#include "tests/master/nodes/fake_transport.hpp"
#include "tests/master/pool/fake_pool.hpp"

namespace syncrun::test {

/// Lets everything arrive that has come to a node. Returns false if there was nothing.
template <class Take>
bool receive_all(detail::master::nodes::Transport& mailbox, Take&& take) {
  bool has_come = false;
  while (const auto next = mailbox.receive()) {
    has_come = true;
    detail::master::nodes::MessageReader message(next->message, "another node");
    take(next->node, message);
  }
  return has_come;
}

/// All nodes have the same number of ranks.
struct NodeOfTest {
  NodeOfTest(FakeNetwork& network, int number, int nodes, int ranks)
      : mailbox(network.at(number)), place(place_of(number, nodes, ranks)), pool(nodes * ranks) {
    pool.control().header().place = place;
    for (int rank = 0; rank < nodes * ranks; ++rank) pool.control().worker(rank).node = rank / ranks;
  }
  static detail::protocol::NodePlace place_of(int number, int nodes, int ranks) {
    return {number, nodes, number * ranks, ranks};
  }
  detail::protocol::Command& command(std::uint64_t id) { return pool.control().command_in(id); }
  /// Fills in a call whose slot is its number.
  detail::protocol::Command& put_call(std::uint64_t id, const detail::protocol::RankSet& ranks) {
    detail::protocol::Command& call = command(id);
    call.begin<detail::protocol::CallPayload>();
    call.id = id;
    call.ranks = ranks;
    call.comm = detail::protocol::CommChoice::nodes();
    return call;
  }
  /// The command that a rank has to run next. Null if it has none.
  const detail::protocol::Command* next_command(int rank) {
    const std::uint64_t place_in_inbox = received_[static_cast<std::size_t>(rank)] % detail::protocol::kInboxSize;
    const detail::protocol::InboxEntry entry(pool.control().inbox(rank, place_in_inbox).load());
    if (entry.command() == 0 || entry.command() <= pool.control().worker(rank).done.load()) return nullptr;
    EXPECT_EQ(command(entry.slot()).id, entry.command());
    return &command(entry.slot());
  }
  /// The rank has done its next command.
  void finish(int rank, const detail::protocol::Command& done) {
    ++received_[static_cast<std::size_t>(rank)];
    pool.finish(rank, done.id);
  }
  /// Lets messages arrive for a part of the agent, and lets it look for work.
  template <class Part>
  void run(Part& part) {
    receive_all(mailbox, [&](int from, detail::master::nodes::MessageReader& message) { part.take(from, message); });
    while (part.look()) {
    }
  }

  detail::master::nodes::Transport& mailbox;
  detail::protocol::NodePlace place;
  FakePool pool;

 private:
  std::vector<std::uint64_t> received_ = std::vector<std::uint64_t>(static_cast<std::size_t>(pool.world_size()));
};

/// The node of the master, which publishes commands.
struct MasterOfTest : NodeOfTest {
  MasterOfTest(FakeNetwork& network, int nodes, int ranks, detail::master::nodes::RelayRoot* root = nullptr)
      : NodeOfTest(network, 0, nodes, ranks),
        remote(mailbox, pool.control(), {pool.segment(), inbound}, places(nodes, ranks), nullptr, nullptr, root) {
    heap.note_changes(remote.changes());
    calls.attach(pool.control());
  }
  /// Publishes a call with one output, an array of doubles or a number.
  std::uint64_t publish(const detail::protocol::RankSet& ranks, std::uint8_t dimensions = 0) {
    auto& call = calls.next(ranks, Milliseconds(0)).begin<detail::protocol::CallPayload>();
    call.outputs_count = 1;
    calls.next_slot().outputs[0] = {.dtype = DType::float64, .reduction = Reduction::sum, .dimensions = dimensions};
    return publish_next();
  }
  /// Publishes the command that the test has filled in.
  std::uint64_t publish_next() {
    const std::uint64_t id = calls.publish();
    remote.publish(id, calls.slot_of(id));
    return id;
  }

  detail::os::SharedHeap heap{pool.segment(), pool.control().header().heap_offset, FakePool::kHeapBytes};
  detail::os::SharedHeap inbound{pool.segment(), std::uint64_t{512} << 20U, std::size_t{16} << 20U};
  detail::master::calls::CommandTable calls;
  detail::master::nodes::RemoteNodes remote;

 private:
  static std::vector<detail::protocol::NodePlace> places(int nodes, int ranks) {
    std::vector<detail::protocol::NodePlace> all;
    for (int node = 0; node < nodes; ++node) all.push_back(place_of(node, nodes, ranks));
    return all;
  }
};

}  // namespace syncrun::test

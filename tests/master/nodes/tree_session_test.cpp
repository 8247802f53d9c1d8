// Messages and calls along the tree of nodes, in one process and without workers, over the fake transport. The test
// decides when messages arrive.

#include <gmock/gmock.h>

#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "master/nodes/agent.hpp"
#include "master/nodes/relay.hpp"
#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;

/// A network of so many nodes with a tree. Some links hold back messages.
class TreeNetwork {
 public:
  TreeNetwork(int nodes, unsigned seed)
      : random(seed), network(nodes), tree(nodes, NodeTree::usual_fan_out(nodes)), root(network.at(0), tree) {
    for (int node = 1; node < nodes; ++node) relays_.emplace_back(network.at(node), tree, node);
  }
  int nodes() const { return tree.nodes(); }
  Relay& relay(int node) { return relays_[static_cast<std::size_t>(node) - 1]; }
  int random_node() { return 1 + static_cast<int>(random() % static_cast<unsigned>(nodes() - 1)); }
  bool maybe(unsigned one_in) { return random() % one_in == 0; }
  void shake() {
    const int node = random_node();
    const int parent = tree.parent(node);
    const bool holds = maybe(2);
    for (const auto& [from, to] : {std::pair(node, parent), std::pair(parent, node)}) {
      if (holds) network.hold_back(from, to);
      else network.release(from, to);
    }
  }
  void release_all() {
    for (int node = 1; node < nodes(); ++node) {
      network.release(node, tree.parent(node));
      network.release(tree.parent(node), node);
    }
  }

  std::mt19937 random;
  FakeNetwork network;
  NodeTree tree;
  RelayRoot root;

 private:
  std::deque<Relay> relays_;
};

// ---- messages

class MessagesAlongATree : public testing::TestWithParam<int> {
 protected:
  static std::vector<std::byte> number(MessageKind kind, std::uint64_t value) {
    MessageWriter message(kind);
    message.put(value);
    return message.take();
  }
  static std::uint64_t number_in(std::span<const std::byte> bytes) {
    MessageReader message(bytes, "a node");
    return message.get<std::uint64_t>();
  }
  /// Some nodes get the next message of the master.
  void send_down(std::uint64_t value) {
    std::set<int> to;
    for (int i = 0; i < 1 + net.nodes() / 3; ++i) to.insert(net.random_node());
    Bundle bundle;
    const auto piece = bundle.add_piece(number(MessageKind::spoil, value));
    for (const int node : to) {
      bundle.add(node, {&piece, 1});
      sent_down[static_cast<std::size_t>(node)].push_back(value);
    }
    net.root.send(bundle);
  }
  /// A node sends its next message to the master, which waits for others or not.
  void send_up(std::uint64_t value) {
    const int node = net.random_node();
    sent_up[static_cast<std::size_t>(node)].push_back(value);
    if (net.maybe(3)) net.relay(node).send(number(MessageKind::progress, value));
    else net.relay(node).report(number(MessageKind::done, value), {}, Relay::Urgency::may_wait);
  }
  void deliver() {
    for (int node = 0; node < net.nodes(); ++node) {
      while (const auto next = net.network.at(node).receive()) take(node, *next);
      if (node != 0 && net.maybe(4)) net.relay(node).look(now += Relay::kLongestHold);
    }
  }
  void take(int node, const Transport::Arrival& received) {
    MessageReader message(received.message, "a neighbour");
    if (node == 0) {
      for_each_report(message, [&](int from, std::span<const std::byte> bytes) {
        got_up[static_cast<std::size_t>(from)].push_back(number_in(bytes));
      });
    } else if (message.kind() == MessageKind::bundle) {
      if (const auto own = net.relay(node).take_bundle(message))
        got_down[static_cast<std::size_t>(node)].push_back(number_in(*own));
    } else {
      net.relay(node).take_reports(message);
    }
  }

  using Numbers = std::vector<std::vector<std::uint64_t>>;  // by node
  TreeNetwork net{GetParam(), static_cast<unsigned>(GetParam())};
  Numbers sent_down{static_cast<std::size_t>(GetParam())}, got_down = sent_down, sent_up = sent_down,
                                                           got_up = sent_down;
  Clock::time_point now{};
};

TEST_P(MessagesAlongATree, OfANodeKeepTheirOrderAndNoneIsLost) {
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    net.shake();
    send_down(i);
    send_up(i);
    if (net.maybe(3)) deliver();
  }
  net.release_all();
  for (int round = 0; round < 60; ++round) deliver();
  EXPECT_EQ(got_down, sent_down);
  EXPECT_EQ(got_up, sent_up);
}

INSTANTIATE_TEST_SUITE_P(OfNodes, MessagesAlongATree, testing::Values(2, 5, 23),
                         [](const auto& test) { return std::to_string(test.param); });

// ---- calls

constexpr int kRanksOfEach = 2;

/// A node other than the master's. The test does what its ranks would do.
class NodeOfTree : public NodeOfTest {
 public:
  NodeOfTree(TreeNetwork& net, int node)
      : NodeOfTest(net.network, node, net.nodes(), kRanksOfEach),
        relay_(net.relay(node)),
        agent_(mailbox, pool.control(), pool.segment(), nullptr, nullptr, &relay_) {}
  /// Handles everything that has come. Returns false if there was nothing to do.
  bool run(Clock::time_point now) {
    bool did_something = receive_all(mailbox, [&](int, MessageReader& message) {
      if (message.kind() == MessageKind::reports) relay_.take_reports(message);
      else if (const auto own = relay_.take_bundle(message)) take(*own);
    });
    did_something = agent_.report() || did_something;
    return relay_.look(now) || did_something;
  }
  const protocol::Command* next_command(int local_rank) { return NodeOfTest::next_command(place.rank(local_rank)); }
  /// The rank runs its next command and returns its number plus its rank. It fails if it was told that it must.
  void run_command(int local_rank) {
    const int rank = place.rank(local_rank);
    const protocol::Command& command = *next_command(local_rank);
    protocol::Outbox& outbox = pool.control().outbox(command, rank);
    outbox.vote = command.spoiled.load() == command.id ? protocol::Vote::failed : protocol::Vote::ok;
    outbox.is_empty = outbox.is_fatal = false;
    const double number = static_cast<double>(command.id) + rank;
    std::memcpy(outbox.outputs[0].scalar.data(), &number, sizeof number);
    finish(rank, command);
  }
  /// The number in an extent of the heap when each command came.
  std::uint64_t watched = 0;
  std::vector<std::uint64_t> seen;

 private:
  void take(const std::vector<std::byte>& bytes) {
    MessageReader message(bytes, "the master");
    agent_.take(message);
    if (message.kind() == MessageKind::command) seen.push_back(*pool.segment().at<std::uint64_t>(watched));
  }

  Relay& relay_;
  Agent agent_;
};

class CallsAlongATree : public testing::TestWithParam<int> {
 protected:
  CallsAlongATree() {
    for (int node = 1; node < net.nodes(); ++node) others.emplace_back(net, node);
    watched = master.heap.allocate(64, os::SharedHeap::Contents::zero, "a test");
    for (NodeOfTree& other : others) other.watched = watched;
  }
  NodeOfTree& other(int node) { return others[static_cast<std::size_t>(node) - 1]; }
  int world_size() const { return net.nodes() * kRanksOfEach; }
  /// Publishes a call on these ranks. The watched extent has its number.
  std::uint64_t publish(const protocol::RankSet& ranks) {
    *master.pool.segment().at<std::uint64_t>(watched) = calls.last_published() + 1;
    master.heap.note_written(watched, 8);
    const auto id = master.publish(ranks);
    for (const NodeOfTree& other : others) {
      const protocol::RankSet::Part here = other.place.ranks_of(ranks);
      if (here.begin() != here.end()) expected[static_cast<std::size_t>(other.place.node)].push_back(id);
    }
    return id;
  }
  void run_ranks_of_master() {
    for (int rank = 0; rank < kRanksOfEach; ++rank) master.pool.finish(rank, calls.last_published());
  }
  bool deliver() {
    bool did_something = receive_all(master.mailbox, [&](int, MessageReader& message) {
      for_each_report(message, [&](int, std::span<const std::byte> bytes) {
        MessageReader report(bytes, "an agent");
        master.remote.take_done(report);
      });
    });
    now += std::chrono::microseconds(20);
    for (NodeOfTree& other : others) did_something = other.run(now) || did_something;
    return did_something;
  }
  void run_all_ranks() {
    for (NodeOfTree& other : others) {
      for (int local_rank = 0; local_rank < kRanksOfEach; ++local_rank) {
        if (other.next_command(local_rank) != nullptr) other.run_command(local_rank);
      }
    }
  }
  protocol::RankSet some_ranks() {
    protocol::RankSet ranks;
    const unsigned count = 1 + net.random() % static_cast<unsigned>(world_size());
    for (unsigned i = 0; i < count; ++i)
      ranks.add(static_cast<int>(net.random() % static_cast<unsigned>(world_size())));
    return ranks;
  }
  double number_of(std::uint64_t id, int rank) {
    double number = 0;
    std::memcpy(&number, calls.outbox(id, rank).outputs[0].scalar.data(), sizeof number);
    return number;
  }

  TreeNetwork net{GetParam(), static_cast<unsigned>(GetParam())};
  MasterOfTest master{net.network, GetParam(), kRanksOfEach, &net.root};
  master::calls::CommandTable& calls = master.calls;
  std::deque<NodeOfTree> others;
  std::uint64_t watched = 0;
  std::vector<std::vector<std::uint64_t>> expected{static_cast<std::size_t>(GetParam())};  // commands by node
  Clock::time_point now{};
};

TEST_P(CallsAlongATree, TakeOneMessageToAndFromEachChildOfTheMaster) {
  const auto children = net.tree.branches(0).size();
  for (int round = 0; round < 3; ++round) {
    const auto sent = net.network.messages_sent(0);
    std::vector<std::size_t> reported;
    for (const auto& branch : net.tree.branches(0)) reported.push_back(net.network.messages_sent(branch.child));
    const auto id = publish(calls.all_ranks());
    run_ranks_of_master();
    for (int step = 0; step < 10 && !calls.is_complete(id); ++step) {
      for (NodeOfTree& other : others) other.run(now);
      run_all_ranks();
      for (auto other = others.rbegin(); other != others.rend(); ++other) other->run(now);
      deliver();
    }
    ASSERT_TRUE(calls.is_complete(id));
    EXPECT_EQ(net.network.messages_sent(0) - sent, children);
    std::size_t child = 0;
    for (const auto& branch : net.tree.branches(0)) {
      const auto below = net.tree.branches(branch.child).size();
      EXPECT_EQ(net.network.messages_sent(branch.child) - reported[child++], below + 1);
    }
    for (int rank = kRanksOfEach; rank < world_size(); ++rank)
      EXPECT_EQ(number_of(id, rank), static_cast<double>(id) + rank);
    calls.release(id, nullptr);
  }
}

/// Many calls are in flight, on any ranks. Each node gets its commands in order, each with the heap of its time.
TEST_P(CallsAlongATree, GiveEachNodeItsCommandsInOrderWithTheHeapOfTheirTime) {
  std::vector<std::uint64_t> open;
  int published = 0;
  int collected = 0;
  for (int step = 0; collected < 300; ++step) {
    ASSERT_LT(step, 200'000);
    net.shake();
    const protocol::RankSet ranks = some_ranks();
    if (published < 300 && !calls.blocker(ranks)) {
      open.push_back(publish(ranks));
      ++published;
    }
    if (published == 300) net.release_all();
    if (net.maybe(2)) run_all_ranks();
    run_ranks_of_master();
    deliver();
    for (auto id = open.begin(); id != open.end();) {
      if (!calls.is_complete(*id)) {
        ++id;
        continue;
      }
      for (const int rank : calls.command(*id).ranks) {
        if (rank < kRanksOfEach) continue;
        ASSERT_EQ(number_of(*id, rank), static_cast<double>(*id) + rank);
      }
      calls.release(*id, nullptr);
      ++collected;
      id = open.erase(id);
    }
  }
  for (int node = 1; node < net.nodes(); ++node) {
    EXPECT_EQ(other(node).seen, expected[static_cast<std::size_t>(node)]) << "node " << node;
  }
  EXPECT_TRUE(calls.is_idle());
}

TEST_P(CallsAlongATree, LearnThatTheyMustFailBeforeLaterCommandsCome) {
  for (int round = 0; round < 20; ++round) {
    const auto id = publish(calls.all_ranks());
    master.remote.spoil(id, calls.slot_of(id));
    const auto next = publish(calls.all_ranks());
    run_ranks_of_master();
    for (int step = 0; step < 10'000 && !(calls.is_complete(id) && calls.is_complete(next)); ++step) {
      net.shake();
      deliver();
      for (NodeOfTree& other : others) {
        // The second command has come, so all that came before it has.
        const protocol::Command* const command = other.next_command(0);
        if (command == nullptr || (command->id == id && other.seen.size() < 2U * static_cast<unsigned>(round) + 2))
          continue;
        for (int local_rank = 0; local_rank < kRanksOfEach; ++local_rank) other.run_command(local_rank);
      }
    }
    net.release_all();
    for (int step = 0; step < 100; ++step) {
      deliver();
      run_all_ranks();
    }
    ASSERT_TRUE(calls.is_complete(id) && calls.is_complete(next));
    for (int rank = kRanksOfEach; rank < world_size(); ++rank) {
      EXPECT_EQ(calls.outbox(id, rank).vote, protocol::Vote::failed);
      EXPECT_EQ(calls.outbox(next, rank).vote, protocol::Vote::ok);
    }
    calls.release(id, nullptr);
    calls.release(next, nullptr);
  }
}

TEST_P(CallsAlongATree, OnOneNodeDoNotWaitForOthers) {
  const auto slow = publish(calls.all_ranks());
  const int last = net.nodes() - 1;
  const auto quick = publish(protocol::RankSet::only(last * kRanksOfEach));
  run_ranks_of_master();
  for (int round = 0; round < 4; ++round) deliver();
  for (const int local_rank : {0, 1}) other(last).run_command(local_rank);  // the slow call
  other(last).run_command(0);
  for (int round = 0; round < 4; ++round) {
    for (NodeOfTree& each : others) each.run(Clock::time_point{});  // nothing is late
    deliver();
  }
  EXPECT_TRUE(calls.is_complete(quick));
  EXPECT_EQ(calls.is_complete(slow), net.nodes() == 2);
}

INSTANTIATE_TEST_SUITE_P(OnNodes, CallsAlongATree, testing::Values(2, 5, 16),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace syncrun::test

// An agent and the master outside of calls: questions before a session, errors of the agent, and nodes that are lost.

#include "master/nodes/agent_role.hpp"

#include <gmock/gmock.h>

#include <csignal>
#include <optional>
#include <span>
#include <vector>

#include "master/nodes/node_cores.hpp"
#include "master/nodes/nodes_pool.hpp"
#include "master/nodes/rank_messages.hpp"
#include "syncrun/options.hpp"
#include "tests/common/error_text.hpp"
#include "tests/master/nodes/groups.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::HasSubstr;

/// The master and two agents.
class Roles : public Groups {
 protected:
  Roles() : Groups(3) {}
  void answer(int node, std::uint64_t question, std::size_t devices, NodeCores cores = {64, 64}) {
    MessageWriter message(MessageKind::devices);
    message.put(question);
    message.put(cores);
    message.put_list(std::span<const master::devices::DeviceId>(std::vector<master::devices::DeviceId>(devices)));
    message.put(std::size_t{0});
    network.at(node).send(0, message.take());
  }
  void refuse(int node, std::uint64_t question) {
    MessageWriter message(MessageKind::start_failed);
    message.put(question);
    message.put(ErrorKind::usage);
    message.put_text("no such device");
    network.at(node).send(0, message.take());
  }
};

TEST_F(Roles, GiveNoMeaningToAnswersToAnEarlierQuestion) {
  NodeGroup& master = join(0);
  master.set_names({"a", "b", "c"});
  refuse(1, 1);
  master::settings::Settings settings;
  settings.devices = std::vector<master::devices::DeviceId>(1);
  EXPECT_THROW(gather_devices(master, {}, settings), Error);
  // Now the answers to the first question come that nobody has waited for.
  refuse(2, 1);
  answer(1, 1, 5);
  answer(1, 2, 1);
  answer(2, 2, 2);
  gather_devices(master, {}, settings);
  EXPECT_EQ(settings.devices.size(), 4U);
  EXPECT_EQ(settings.nodes.back().local_size, 2);
}

TEST_F(Roles, WarnOfTooFewCoresOnlyIfTheMachineHasMore) {
  NodeGroup& master = join(0);
  master.set_names({"a", "b", "c"});
  master::settings::Settings settings;
  settings.devices = std::vector<master::devices::DeviceId>(1);
  answer(1, 1, 8, {4, 4});
  answer(2, 1, 4, {4, 64});
  gather_devices(master, {}, settings);
  EXPECT_EQ(settings.too_few_cores, "");
}

TEST_F(Roles, LetTheMasterHearOfAnErrorOfTheAgent) {
  NodeGroup& group = join(1);
  network.at(0).send(1, MessageWriter(MessageKind::start).take());  // is too short
  EXPECT_THAT(error_text([&] { AgentRole(group).serve(); }),
              HasSubstr("a message from node 0 is too short: 16 more bytes expected, 0 are there"));
  EXPECT_FALSE(group.is_lost(0)) << "nothing can be sent to the master any more";
}

/// A pool whose workers are all on the nodes 1 and 2, one on each. The test does what the agents would do.
class Replacements : public Roles {
 protected:
  Replacements() {
    settings.devices = std::vector<master::devices::DeviceId>(2);
    settings.nodes = {{0, 3, 0, 0}, {1, 3, 0, 1}, {2, 3, 1, 1}};
    settings.node_names = {"a", "b", "c"};
    settings.on_worker_lost = OnWorkerLost::respawn;
    pool.emplace(join(0), settings);
    pool->start();
  }
  ~Replacements() override {
    for (const int node : {1, 2}) network.at(node).send(0, MessageWriter(MessageKind::ended).take());
  }
  void lose(int node, int rank) {
    MessageWriter lost(MessageKind::rank_lost);
    put_rank_lost(lost, rank, protocol::WorkerSlot{});
    network.at(node).send(0, lost.take());
    MessageWriter end(MessageKind::rank_end);
    put_rank_end(end, rank, protocol::WorkerSlot{}, {{SIGKILL, "killed by SIGKILL"}, {}});
    network.at(node).send(0, end.take());
    EXPECT_EQ(pool->await_end(rank).wait_status, SIGKILL);
  }
  /// What has come to a node since the last time, besides signs of life and the start.
  std::vector<MessageKind> received_by(int node) {
    std::vector<MessageKind> kinds;
    pool->progress();
    while (const auto next = network.at(node).receive()) {
      const auto kind = static_cast<MessageKind>(next->message.front());
      if (kind != MessageKind::beat && kind != MessageKind::start) kinds.push_back(kind);
    }
    return kinds;
  }

  master::settings::Settings settings;
  std::optional<NodesPool> pool;
};

TEST_F(Replacements, KeepTheNoteOfALossThatCameMeanwhile) {
  lose(1, 0);
  lose(2, 1);
  pool->replace({{.rank = 0, .last = 7, .received = 3}});
  EXPECT_EQ(pool->control().header().lost.load(), 2U);
  EXPECT_THAT(received_by(1), testing::ElementsAre(MessageKind::peer_lost, MessageKind::replace));
}

TEST_F(Roles, DoNotAwaitTheEndOfAWorkerOnALostNode) {
  NodeGroup& master = join(0);
  master::settings::Settings settings;
  settings.devices = std::vector<master::devices::DeviceId>(2);
  settings.nodes = {{0, 2, 0, 1}, {1, 2, 1, 1}};
  settings.node_names = {"a", "b"};
  NodesPool pool(master, settings);
  master.lose(1, Error(ErrorKind::worker_lost, "node 1 is silent"));
  const auto begin = Clock::now();
  EXPECT_THAT(pool.await_end(1).cause, HasSubstr("its node has not said"));
  EXPECT_LT(Clock::now() - begin, Milliseconds(5000));
}

}  // namespace
}  // namespace syncrun::test

// The agent's part of a session, with a pool without processes, and what the master gets from it.

#include "master/nodes/node_session.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <span>
#include <thread>

#include "master/nodes/rank_messages.hpp"
#include "tests/master/nodes/groups.hpp"
#include "tests/master/nodes/nodes_of_test.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::ElementsAre;

/// Ranks 2 and 3 are on node 1. The test is the master.
class OnOtherNode : public Groups {
 protected:
  OnOtherNode() : Groups(2) {
    network.on_send = [this](std::span<const std::byte> message) {
      // The thread of the group only sends signs of life. So it never looks at `on_progress`, which a test sets meanwhile.
      if (static_cast<MessageKind>(message.front()) == MessageKind::progress && on_progress) on_progress();
    };
    SessionStart start;
    start.place = master.place_of(1, 2, 2);
    auto owned = std::make_unique<FakePool>(4);
    pool = owned.get();
    pool->control().header().place = start.place;
    session.emplace(join(1), start, std::move(owned));
    session->report();
    received();
  }
  /// What has arrived at the master, without signs of life.
  std::vector<std::vector<std::byte>> received() {
    std::vector<std::vector<std::byte>> messages;
    while (auto next = network.at(0).receive()) {
      if (static_cast<MessageKind>(next->message.front()) != MessageKind::beat)
        messages.push_back(std::move(next->message));
    }
    return messages;
  }
  std::vector<MessageKind> received_kinds() {
    std::vector<MessageKind> kinds;
    for (const auto& message : received()) kinds.push_back(static_cast<MessageKind>(message.front()));
    return kinds;
  }
  void take(MessageWriter from) {
    const auto bytes = from.take();
    MessageReader message(bytes, "the master");
    session->take(0, message);
  }
  void replace(const std::vector<master::pool::Successor>& successors) {
    MessageWriter message(MessageKind::replace);
    put_successors(message, successors);
    take(std::move(message));
  }
  /// Gives rank 3 a command. Returns its number.
  std::uint64_t give_command() {
    master.calls.next(protocol::RankSet::only(3), Milliseconds(0)).begin<protocol::ClosePayload>();
    const auto id = master.publish_next();
    receive_all(network.at(1), [&](int from, MessageReader& message) { session->take(from, message); });
    return id;
  }
  const ControlBlock& known() { return master.pool.control(); }

  std::function<void()> on_progress;  // called while the session reports where workers are
  MasterOfTest master{network, 2, 2};
  FakePool* pool = nullptr;
  std::optional<NodeSession> session;
};

TEST_F(OnOtherNode, ReportsWhatALostWorkerHadFinishedBeforeItsLoss) {
  const auto id = give_command();
  on_progress = [&] {  // after the session has looked for finished commands
    pool->finish(3, id);
    pool->die(3, FakePool::killed());
  };
  session->report();
  EXPECT_THAT(received_kinds(),
              ElementsAre(MessageKind::progress, MessageKind::done, MessageKind::rank_lost, MessageKind::rank_end));
}

TEST_F(OnOtherNode, ReportsALossThatIsNotedAfterTheEnd) {
  std::this_thread::sleep_for(Milliseconds(10));
  pool->end_by_itself(3, SIGKILL);
  session->report();
  EXPECT_THAT(received_kinds(), ElementsAre(MessageKind::rank_end));
  pool->die(3, FakePool::killed());
  session->report();
  EXPECT_THAT(received_kinds(), ElementsAre(MessageKind::rank_lost));
}

TEST_F(OnOtherNode, ReportsTheFirstLossFirst) {
  pool->die(3, FakePool::killed());
  pool->die(2, {0, "ended because rank 3 was lost"});
  session->report();
  std::vector<int> ranks;
  for (const auto& bytes : received()) {
    MessageReader message(bytes, "node 1");
    if (message.kind() == MessageKind::rank_lost) ranks.push_back(take_rank_lost(message, known()));
  }
  EXPECT_THAT(ranks, ElementsAre(3, 2));
}

TEST_F(OnOtherNode, LearnsOfLossesOnOtherNodes) {
  MessageWriter lost(MessageKind::peer_lost);
  put_peer_lost(lost, 1);
  take(lost);
  EXPECT_EQ(pool->control().worker(1).is_lost.load(), 1U);
  EXPECT_FALSE(session->report()) << "the master knows it";
  pool->die(3, FakePool::killed());
  session->report();
  EXPECT_THAT(received_kinds(), ElementsAre(MessageKind::rank_lost, MessageKind::rank_end));
  replace({{.rank = 1, .last = 5, .received = 5}, {.rank = 3, .last = 5, .received = 2}});
  EXPECT_EQ(pool->control().worker(1).is_lost.load(), 0U) << "the next command may come now";
  EXPECT_EQ(pool->control().worker(1).predecessors, 0) << "its own node prepares its slot";
}

TEST_F(OnOtherNode, StartsASuccessorAndWatchesIt) {
  const auto id = give_command();
  pool->die(3, FakePool::killed());
  session->report();
  received();
  pool->log.clear();
  pool->on_reap = [&] {
    EXPECT_EQ(pool->control().header().replacements.load(), 0U) << "the other workers look at the slots then";
  };
  replace({{.rank = 3, .last = id, .received = 1}});
  pool->control().worker(3).pid.store(203);
  EXPECT_TRUE(session->report());
  EXPECT_THAT(pool->log, ElementsAre("reap 3", "replace 3"));
  const protocol::WorkerSlot& slot = pool->control().worker(3);
  EXPECT_EQ(slot.is_lost.load(), 0U);
  EXPECT_EQ(slot.done.load(), id) << "it begins with the next command";
  EXPECT_EQ(slot.received, 1U);
  EXPECT_EQ(slot.predecessors, 1);
  EXPECT_EQ(pool->control().header().replacements.load(), 1U);
  for (const auto& failed : pool->control().header().failed_comms) EXPECT_EQ(failed.load(), id);
  EXPECT_THAT(received_kinds(), ElementsAre(MessageKind::rank_state)) << "its command must not be reported as done";
  pool->log.clear();
  pool->control().worker(3).start.store(protocol::StartState::ready);
  EXPECT_TRUE(session->report());
  EXPECT_THAT(pool->log, ElementsAre("watch 3"));
  const auto messages = received();
  ASSERT_EQ(messages.size(), 1U);
  MessageReader state(messages.front(), "node 1");
  ASSERT_EQ(state.kind(), MessageKind::rank_state);
  EXPECT_EQ(take_rank_state(state, known()), 3);
  EXPECT_EQ(known().worker(3).start.load(), protocol::StartState::ready);
  pool->die(3, FakePool::killed());
  session->report();
  EXPECT_THAT(received_kinds(), ElementsAre(MessageKind::rank_lost, MessageKind::rank_end)) << "it can be lost as well";
}

TEST_F(OnOtherNode, SaysWhyASuccessorWasNotStarted) {
  pool->die(3, FakePool::killed());
  session->report();
  received();
  pool->immortal = {3};
  replace({{.rank = 3, .last = 5, .received = 1}});
  session->report();
  const auto messages = received();
  ASSERT_EQ(messages.size(), 2U);
  RankEnd end;
  MessageReader ended(messages[0], "node 1");
  ASSERT_EQ(ended.kind(), MessageKind::rank_end);
  EXPECT_EQ(take_rank_end(ended, known(), end), 3);
  MessageReader state(messages[1], "node 1");
  ASSERT_EQ(state.kind(), MessageKind::rank_state);
  take_rank_state(state, known());
  EXPECT_EQ(known().worker(3).start.load(), protocol::StartState::failed);
  EXPECT_EQ(text::get_text(known().worker(3).reason), "rank 3 cannot be killed");
}

TEST_F(OnOtherNode, RefusesSuccessorsOfRanksThatDoNotExist) {
  EXPECT_THROW(replace({{.rank = 4, .last = 5, .received = 1}}), Error);
}

}  // namespace
}  // namespace syncrun::test

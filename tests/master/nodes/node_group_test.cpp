// The nodes of a job among each other, without processes: messages, signs of life, losses and the end.

#include "master/nodes/node_group.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/master/nodes/groups.hpp"
#include "tests/support/slowdown.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::ElementsAre;
using testing::HasSubstr;

/// A master and two agents. A sign of life comes each millisecond, and a node is lost after 1.5 s (with a sanitizer,
/// six): on a busy machine, its thread may not run for a while.
class Group : public Groups {
 protected:
  static constexpr Limits kLimits{.silence = kSlowdown * Milliseconds(1500),
                                  .beat = Milliseconds(1),
                                  .masters_turn = kSlowdown * Milliseconds(100)};

  Group() : Groups(3, kLimits) {
    for (int node = 0; node < 3; ++node) join(node);
  }
  ~Group() override {
    for (auto& group : groups) group.listen(nullptr);
  }
  /// Lets messages arrive for longer than a node may be silent.
  template <class Also>
  void pass(Also&& also) {
    for (const auto end = Clock::now() + 2 * kLimits.silence; Clock::now() < end;) {
      also();
      for (auto& group : groups) group.progress();
      std::this_thread::sleep_for(Milliseconds(5));
    }
  }

  Notes notes;
};

TEST_F(Group, KeepsMessagesUntilSomebodyListens) {
  groups[0].send(2, number(MessageKind::open, 7));
  std::this_thread::sleep_for(Milliseconds(20));
  groups[2].progress();
  groups[2].listen(&notes);
  ASSERT_TRUE(until([&] { return !notes.messages().empty(); }));
  EXPECT_THAT(notes.messages(), ElementsAre(std::pair(0, 7)));
}

TEST_F(Group, IsQuietUntilAMessageComes) {
  groups[0].listen(&notes);
  const auto is_quiet = [this] { return groups[0].quiet() > Milliseconds(50); };
  EXPECT_TRUE(until(is_quiet)) << "signs of life do not count";
  groups[1].send(0, number(MessageKind::open, 1));
  EXPECT_TRUE(until([this] { return !notes.messages().empty(); }));
  EXPECT_LT(groups[0].quiet(), Milliseconds(1000));
  EXPECT_TRUE(until(is_quiet));
}

TEST_F(Group, NapsLongerIfTheWorkersNeedAllCoresAndNobodyNeedsAMessage) {
  NodeGroup& agent = groups[1];
  ASSERT_TRUE(until([&] { return agent.quiet() > Milliseconds(20); }));
  // Time passes between two calls, so the later one would return more if nothing else mattered.
  const auto need = agent.nap();
  const auto spare_core = agent.nap(NodeGroup::Need::none);
  agent.note_full(true);
  const auto none = agent.nap(NodeGroup::Need::none);
  EXPECT_GE(none, Milliseconds(2)) << "an eighth of the time";
  if (agent.quiet() > Milliseconds(60)) GTEST_SKIP() << "this machine has stopped the test meanwhile";
  EXPECT_LT(need, Milliseconds(2));
  EXPECT_LT(spare_core, Milliseconds(2)) << "there is a core for the agent";
  EXPECT_LT(agent.nap(), Milliseconds(2)) << "full, but with a need";
}

class SteadyGroup : public Groups {
 protected:
  SteadyGroup() : Groups(2, {.silence = Milliseconds(60'000), .beat = Milliseconds(1)}) {
    for (int node = 0; node < 2; ++node) join(node);
  }
};

/// Each look for messages costs the ranks time. So what they send leaves before it.
TEST_F(SteadyGroup, LooksAtItsRanksBeforeItLooksForMessages) {
  class Order final : public NodeListener {
   public:
    void on_message(int, MessageReader&) override { seen += 'm'; }
    void on_node_lost(int, const Error&) noexcept override {}
    bool look() override {
      seen += 'l';
      return false;
    }
    std::string seen;
  };
  Order order;
  groups[1].listen(&order);
  groups[0].send(1, number(MessageKind::open, 1));
  while (order.seen.find('m') == std::string::npos) groups[1].progress();
  groups[1].listen(nullptr);
  EXPECT_EQ(order.seen.front(), 'l');
}

TEST(Stays, AreFewInALongWait) {
  Stays stays;
  int begun = 0;
  for (int turn = 0; turn < 1000; ++turn) begun += stays.begin(0) ? 1 : 0;
  EXPECT_EQ(begun, Stays::kInEachWait);
}

TEST(Stays, AreRareUntilOneSeesAnAnswer) {
  Stays stays;
  const auto waits_with_stays = [&stays](std::uint64_t first, std::uint64_t end) {
    int waits = 0;
    for (std::uint64_t wait = first; wait < end; ++wait) waits += stays.begin(wait) ? 1 : 0;
    return waits;
  };
  EXPECT_EQ(waits_with_stays(1, 32), Stays::kWaitsInVain);
  EXPECT_EQ(waits_with_stays(32, 320), 9) << "every 32nd";
  ASSERT_TRUE(stays.begin(320));
  stays.note_answer();
  EXPECT_EQ(waits_with_stays(321, 352), Stays::kWaitsInVain);
}

/// In the program's thread, and in that of the group. The listener may have gigabytes to copy.
TEST_F(SteadyGroup, SaysThatItIsAliveWhileTheListenerIsBusy) {
  class Busy final : public NodeListener {
   public:
    explicit Busy(FakeNetwork& network) : network_(network) {}
    void on_message(int, MessageReader&) override {
      const std::size_t before = network_.messages_sent(0);
      const auto end = Clock::now() + kSlowdown * std::chrono::seconds(20);
      while (network_.messages_sent(0) < before + 20 && Clock::now() < end)
        std::this_thread::sleep_for(Milliseconds(1));
      has_beaten = network_.messages_sent(0) >= before + 20;
      ++messages;
    }
    void on_node_lost(int, const Error&) noexcept override {}
    std::atomic<bool> has_beaten = false;
    std::atomic<int> messages = 0;

   private:
    FakeNetwork& network_;
  };
  Busy busy(network);
  groups[0].listen(&busy);
  groups[1].send(0, number(MessageKind::rank_state, 1));
  ASSERT_TRUE(until([&] { return busy.messages == 1; }));
  EXPECT_TRUE(busy.has_beaten);
  groups[1].send(0, number(MessageKind::rank_state, 2));
  while (busy.messages != 2) std::this_thread::sleep_for(Milliseconds(1));
  EXPECT_TRUE(busy.has_beaten);
  groups[0].listen(nullptr);
}

/// Its listener hears of the loss afterwards.
TEST_F(Group, SaysThatItIsAliveWhileTheListenerIsBusyAndANodeIsLost) {
  class Busy final : public NodeListener {
   public:
    Busy(FakeNetwork& network, NodeGroup& group) : network_(network), group_(group) {}
    void on_message(int, MessageReader&) override {
      const auto end = Clock::now() + kSlowdown * std::chrono::seconds(20);
      while (!group_.is_lost(2) && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
      const std::size_t before = network_.messages_sent(0);
      while (network_.messages_sent(0) < before + 20 && Clock::now() < end)
        std::this_thread::sleep_for(Milliseconds(1));
      has_beaten = network_.messages_sent(0) >= before + 20;
    }
    void on_node_lost(int node, const Error&) noexcept override { lost = node; }
    std::atomic<bool> has_beaten = false;
    std::atomic<int> lost = 0;

   private:
    FakeNetwork& network_;
    NodeGroup& group_;
  };
  Busy busy(network, groups[0]);
  groups[0].listen(&busy);
  groups[1].send(0, number(MessageKind::rank_state, 1));
  network.kill(2);
  EXPECT_TRUE(until([&] { return busy.lost == 2; }));
  EXPECT_TRUE(busy.has_beaten);
  groups[0].listen(nullptr);
}

TEST_F(Group, NoticesThatOnlyTheLinkToAnAgentIsBrokenForWhichItWaits) {
  const auto wait = [this] { groups[1].note_wait_for(2); };
  const auto has_broken_link = [&] {
    wait();
    return groups[1].broken_link().has_value();
  };
  pass(wait);
  EXPECT_FALSE(groups[1].broken_link()) << "the other agent answers";
  std::this_thread::sleep_for(Milliseconds(1100));  // a wait counts for a second
  network.hold_back(2, 1);
  pass([] {});
  EXPECT_FALSE(groups[1].broken_link()) << "nobody waits any more";
  ASSERT_TRUE(until(has_broken_link));
  EXPECT_THAT(groups[1].broken_link()->what(), HasSubstr("nothing is heard from node 2 for "));
  EXPECT_FALSE(groups[2].broken_link());
}

TEST_F(Group, HearsAFarewellThatCameWhileItWasBusyAndLeavesInOrder) {
  groups[1].listen(&notes);
  groups[0].set_verdict("it failed");
  bool master_left = false;
  std::thread master([&] { master_left = groups[0].leave(3, Milliseconds(5000)); });
  std::this_thread::sleep_for(2 * kLimits.silence);  // nobody handles the messages of node 1 meanwhile
  EXPECT_EQ(notes.loss_of(0), "");
  ASSERT_TRUE(until([&] { return groups[1].farewell(); }));
  EXPECT_EQ(groups[1].farewell()->exit_code, 3);
  EXPECT_EQ(groups[1].farewell()->verdict, "it failed");
  EXPECT_THAT(notes.loss_of(0), HasSubstr("has left the job (exit code 3)"));
  std::thread second([&] { static_cast<void>(groups[2].leave(3, Milliseconds(5000))); });
  static_cast<void>(groups[1].leave(3, Milliseconds(5000)));
  second.join();
  master.join();
  EXPECT_TRUE(master_left);
}

TEST_F(Group, HearsAFaultThatCameWhileNobodyListened) {
  MessageWriter fault(MessageKind::fault);
  fault.put(ErrorKind::system);
  fault.put_text("no memory");
  groups[2].send(0, std::move(fault));
  std::this_thread::sleep_for(Milliseconds(20));
  network.kill(2);
  std::this_thread::sleep_for(2 * kLimits.silence);
  groups[0].listen(&notes);
  ASSERT_TRUE(until([&] { return !notes.loss_of(2).empty(); }));
  EXPECT_EQ(notes.loss_of(2), "node 2: no memory");
}

}  // namespace
}  // namespace syncrun::test

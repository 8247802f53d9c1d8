// The nodes of a job among each other, without processes: messages, signs of life, losses and the end.

#include "launcher/nodes/node_group.hpp"

#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/launcher/nodes/borrowed_transport.hpp"
#include "tests/launcher/nodes/fake_transport.hpp"
#include "tests/launcher/nodes/notes.hpp"
#include "tests/support/slowdown.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

/// A master and two agents. A sign of life comes each millisecond, and a node is lost after a tenth of a second (with
/// a sanitizer, four tenths).
class Group : public testing::Test {
 protected:
  static constexpr NodeGroup::Limits kLimits{.silence = kSlowdown * Milliseconds(100), .beat = Milliseconds(1)};
  const std::string kSilenceText = kSlowdown == 1 ? "0.1 s" : "0.4 s";

  Group() {
    for (int node = 0; node < 3; ++node) network.at(node).open();
    for (int node = 0; node < 3; ++node)
      groups.push_back(std::make_unique<NodeGroup>(std::make_unique<BorrowedTransport>(network.at(node)), kLimits));
  }
  static MessageWriter number(int value) {
    MessageWriter message(MessageKind::open);
    message.put(value);
    return message;
  }
  /// Lets messages pass until `holds()`.
  template <class Holds>
  bool until(Holds&& holds) {
    const auto end = Clock::now() + kSlowdown * Milliseconds(5000);
    while (!holds()) {
      if (Clock::now() > end) return false;
      for (const auto& group : groups) group->progress();
      std::this_thread::sleep_for(Milliseconds(1));
    }
    return true;
  }

  FakeNetwork network{3};
  std::vector<std::unique_ptr<NodeGroup>> groups;
  Notes notes{MessageKind::done};
};

TEST_F(Group, KeepsMessagesUntilSomebodyListens) {
  groups[0]->send(2, number(7));
  std::this_thread::sleep_for(Milliseconds(20));
  groups[2]->progress();
  groups[2]->listen(&notes);
  ASSERT_TRUE(until([&] { return !notes.messages().empty(); }));
  EXPECT_THAT(notes.messages(), ElementsAre(std::pair(0, 7)));
  groups[2]->listen(nullptr);
}

TEST_F(Group, IsQuietUntilAMessageComes) {
  groups[0]->listen(&notes);
  const auto is_quiet = [this] { return groups[0]->quiet() > Milliseconds(50); };
  EXPECT_TRUE(until(is_quiet)) << "signs of life do not count";
  groups[1]->send(0, number(1));
  EXPECT_TRUE(until([this] { return !notes.messages().empty(); }));
  EXPECT_LT(groups[0]->quiet(), Milliseconds(1000));
  EXPECT_TRUE(until(is_quiet));
  groups[0]->listen(nullptr);
}

TEST_F(Group, NapsLongerIfTheWorkersNeedAllCoresAndNobodyNeedsAMessage) {
  NodeGroup& agent = *groups[1];
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

TEST_F(Group, LosesASilentNode) {
  groups[0]->set_names({"a", "b", "c"});
  groups[0]->listen(&notes);
  network.kill(1);
  ASSERT_TRUE(until([&] { return !notes.loss_of(1).empty(); }));
  EXPECT_THAT(notes.loss_of(1), HasSubstr("node 1 (b) is silent for " + kSilenceText));
  EXPECT_EQ(notes.loss_of(2), "");
  EXPECT_TRUE(groups[0]->is_lost(1));
  EXPECT_FALSE(groups[0]->is_lost(2));
  groups[0]->send(1, number(1));  // is dropped
  groups[0]->listen(nullptr);
}

TEST_F(Group, KeepsANodeWhoseSignsOfLifeWaitBehindSomethingLarge) {
  groups[0]->listen(&notes);
  network.hold_back(1, 0);
  for (int piece = 0; piece < 16; ++piece) {
    network.pass_piece(1, 0);
    std::this_thread::sleep_for(kLimits.silence / 4);
  }
  EXPECT_EQ(notes.loss_of(1), "");
  ASSERT_TRUE(until([&] { return !notes.loss_of(1).empty(); })) << "no piece arrives any more";
  groups[0]->listen(nullptr);
}

TEST_F(Group, TellsAListenerOfEarlierLosses) {
  network.kill(2);
  ASSERT_TRUE(until([&] { return groups[0]->is_lost(2); }));
  groups[0]->listen(&notes);
  EXPECT_THAT(notes.loss_of(2), HasSubstr("is silent"));
  groups[0]->listen(nullptr);
}

TEST_F(Group, LosesANodeWhoseMessageCannotBeHandled) {
  groups[1]->send(0, MessageWriter(MessageKind::done));
  groups[0]->listen(&notes);
  ASSERT_TRUE(until([&] { return !notes.loss_of(1).empty(); }));
  EXPECT_EQ(notes.loss_of(1), "cannot be read");
  groups[0]->listen(nullptr);
}

TEST_F(Group, HearsAFarewellThatCameWhileItWasBusyAndLeavesInOrder) {
  groups[1]->listen(&notes);
  groups[0]->set_verdict("it failed");
  bool master_left = false;
  std::thread master([&] { master_left = groups[0]->leave(3, Milliseconds(5000)); });
  std::this_thread::sleep_for(4 * kLimits.silence);  // nobody handles the messages of node 1 meanwhile
  EXPECT_EQ(notes.loss_of(0), "");
  ASSERT_TRUE(until([&] { return groups[1]->farewell(); }));
  EXPECT_EQ(groups[1]->farewell()->exit_code, 3);
  EXPECT_EQ(groups[1]->farewell()->verdict, "it failed");
  EXPECT_THAT(notes.loss_of(0), HasSubstr("has left the job (exit code 3)"));
  groups[1]->listen(nullptr);
  std::thread second([&] { static_cast<void>(groups[2]->leave(3, Milliseconds(5000))); });
  static_cast<void>(groups[1]->leave(3, Milliseconds(5000)));
  second.join();
  master.join();
  EXPECT_TRUE(master_left);
}

TEST_F(Group, HearsAFaultThatCameWhileNobodyListened) {
  MessageWriter fault(MessageKind::fault);
  fault.put(ErrorKind::system);
  fault.put_text("no memory");
  groups[2]->send(0, std::move(fault));
  std::this_thread::sleep_for(Milliseconds(20));
  network.kill(2);
  std::this_thread::sleep_for(4 * kLimits.silence);
  groups[0]->listen(&notes);
  ASSERT_TRUE(until([&] { return !notes.loss_of(2).empty(); }));
  EXPECT_EQ(notes.loss_of(2), "node 2: no memory");
  groups[0]->listen(nullptr);
}

}  // namespace
}  // namespace syncrun::test

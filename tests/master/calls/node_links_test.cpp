// When the ranks of different nodes connect, and what happens if they cannot. The test plays the part of the ranks.

#include "master/calls/node_links.hpp"

#include <gmock/gmock.h>

#include "common/text/fixed_text.hpp"
#include "tests/master/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WarningsOnly final : public text::Logger {
 public:
  std::vector<std::string> warnings;

 private:
  void write(LogLevel level, std::string_view text) override {
    if (level == LogLevel::warning) warnings.emplace_back(text);
  }
};

/// Two nodes with one rank each.
class Links : public testing::Test {
 protected:
  Links() {
    session.commands.on_command = [this](const protocol::Command& command) {
      const auto& request = command.as<protocol::ConnectPayload>();
      auto* const answers = session.pool.segment().at<protocol::ConnectAnswer>(request.answers);
      for (int rank = 0; rank < 2; ++rank) text::put_text(answers[rank].problem, problem);
      if (while_connecting) while_connecting();
    };
  }
  bool prepare(const protocol::RankSet& ranks = protocol::RankSet::all(2)) {
    links.prepare(ranks);
    return session.commands.comms().choose(protocol::RankSet::all(2)) == protocol::CommChoice::linked_nodes();
  }
  std::size_t tries() const { return session.commands.log.size(); }

  PlayedSession session{{{DeviceKind::cpu, 0}, {DeviceKind::cpu, 0}}, {{0, 2, 0, 1}, {1, 2, 1, 1}}};
  WarningsOnly logger;
  master::calls::NodeLinks links{session.commands, logger, "", os::Milliseconds(5000)};
  std::string problem;
  std::function<void()> while_connecting;
};

TEST_F(Links, AreMadeOnceAndOnlyForRanksOfAllNodes) {
  EXPECT_FALSE(prepare(protocol::RankSet::only(1)));
  EXPECT_EQ(tries(), 0U);
  EXPECT_TRUE(prepare());
  EXPECT_TRUE(prepare());
  EXPECT_EQ(tries(), 1U);
}

TEST_F(Links, AreTriedTwiceBeforeAWarning) {
  problem = "rank 1 (b) cannot connect to rank 0 (a): why";
  EXPECT_FALSE(prepare());
  EXPECT_THAT(logger.warnings, IsEmpty());
  EXPECT_FALSE(prepare());
  EXPECT_THAT(logger.warnings, ElementsAre(HasSubstr(problem + ". So collectives between hosts pass through")));
  EXPECT_FALSE(prepare());
  EXPECT_EQ(tries(), 2U);
}

TEST_F(Links, WithAWorkerThatWasReplacedMeanwhileAreNotUsed) {
  while_connecting = [this] { session.pool.control().header().replacements.fetch_add(1); };
  EXPECT_FALSE(prepare());
  while_connecting = nullptr;
  EXPECT_TRUE(prepare());
  EXPECT_THAT(logger.warnings, IsEmpty());
}

TEST_F(Links, ThatCannotBeMadeDoNotFailTheCallUnlessTheSessionIsOver) {
  while_connecting = [] { throw Error(ErrorKind::system, "no memory"); };
  EXPECT_FALSE(prepare());
  while_connecting = [] { throw Error(ErrorKind::worker_lost, "rank 1 was lost"); };
  EXPECT_THROW(prepare(), Error);
  while_connecting = [this] {
    session.commands.is_session_open = false;
    throw Error(ErrorKind::timeout, "late");
  };
  EXPECT_THROW(prepare(), Error);
}

}  // namespace
}  // namespace syncrun::test

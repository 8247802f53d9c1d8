// Devices that a program finds by the names that the user has given them.

#include <cstdlib>
#include <optional>

#include "tests/support/on_workers.hpp"

namespace {

sr::Sum<int> own_rank(sr::CpuWorker& worker) { return worker.rank(); }

class NamedDevices : public testing::Test {
 protected:
  sr::Session& open(const std::string& devices) {
    session_.emplace(sr::SessionOptions{.devices = devices});
    return *session_;
  }
  void TearDown() override {
    if (session_) session_->close();
    ::unsetenv("SYNCRUN_CONTEXTS");
  }

 private:
  std::optional<sr::Session> session_;
};

TEST_F(NamedDevices, RunCallsOnTheirRanks) {
  sr::Session& session = open("left=cpu0,right=cpu1");
  const auto f = session.function(own_rank);
  EXPECT_EQ(session.world_size(), 2);
  EXPECT_EQ(f.on_rank(session.device("left").rank())(), 0);
  EXPECT_EQ(f.on_rank(session.device("right").rank())(), 1);
  EXPECT_EQ(session.devices(), (std::vector<std::string>{"cpu0", "cpu1"})) << "as without names";
}

TEST_F(NamedDevices, LetAProgramForTwoDevicesRunOnOne) {
  sr::Session& session = open("left=cpu3,right=cpu3");
  const auto f = session.function(own_rank);
  EXPECT_EQ(session.world_size(), 1);
  EXPECT_EQ(f.on_rank(session.device("left").rank())(), 0);
  EXPECT_EQ(f.on_rank(session.device("right").rank())(), 0);
  EXPECT_EQ(session.device("left"), session.device("right"));
  EXPECT_EQ(session.device("right").name(), "right");
  EXPECT_EQ(session.device("right").id(), "cpu3");
}

TEST_F(NamedDevices, AreFoundByHardwareAndByRankTooAlsoAfterTheSession) {
  sr::Session& session = open("cpu1,left=cpu0");
  EXPECT_EQ(session.device("cpu1").rank(), 0);
  EXPECT_EQ(session.device("cpu0").name(), "left");
  EXPECT_EQ(session.device(0).name(), "cpu1");
  EXPECT_EQ(session.device(1), session.device("left"));
  session.close();
  EXPECT_EQ(session.device("left").rank(), 1);
}

TEST_F(NamedDevices, ComeFromContextsAsWell) {
  ::setenv("SYNCRUN_CONTEXTS", "dev0->cpu0;dev1->cpu0", 1);
  sr::Session& session = open("");
  EXPECT_EQ(session.world_size(), 1);
  EXPECT_EQ(session.device("dev1").rank(), 0);
}

TEST_F(NamedDevices, ThatAreUnknownAreAnErrorWithTheKnownOnes) {
  sr::Session& session = open("left=cpu0,cpu1");
  EXPECT_ERROR(static_cast<void>(session.device("middle")), sr::ErrorKind::usage,
               "this session has no device 'middle'; expected one of left (cpu0), cpu1; to name devices, use");
  EXPECT_ERROR(static_cast<void>(session.device(2)), sr::ErrorKind::usage, "a rank from 0 to 1, got 2");
}

TEST_F(NamedDevices, ThatAreNamedBadlyStartNoWorker) {
  EXPECT_ERROR(open("left=cpu0,left=cpu1"), sr::ErrorKind::usage,
               "SessionOptions::devices: expected each name once, got 'left=cpu0' and 'left=cpu1'");
  EXPECT_ERROR(open("cpux=cpu0"), sr::ErrorKind::usage, "SessionOptions::devices: expected a name that");
  ::setenv("SYNCRUN_CONTEXTS", "dev0->cpu0;dev1", 1);
  EXPECT_ERROR(open(""), sr::ErrorKind::usage, "SYNCRUN_CONTEXTS: expected NAME->DEVICE");
}

}  // namespace

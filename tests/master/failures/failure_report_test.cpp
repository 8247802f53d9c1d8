// The messages about workers that fail, are late or are lost, tested without processes.

#include "master/failures/failure_report.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "master/process/spawn.hpp"
#include "master/session/session_end.hpp"
#include "tests/master/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

class Report : public testing::Test {
 protected:
  Report() { calls.attach(pool.control()); }

  std::uint64_t publish(const char* what) {
    calls.next(calls.all_ranks(), Milliseconds(0));
    calls.next_in_flight().what = what;
    return calls.publish();
  }

  FakePool pool{2};
  master::calls::CommandTable calls;
  master::failures::FailureReport report{pool, calls, {"cpu0", "cuda1"}};
};

TEST_F(Report, OfAWorkerWithoutASlotTakesItsReasonFromWhatItPrinted) {
  pool.stderr_lines[0] = {std::string(protocol::kCannotStart) + "too little memory"};
  EXPECT_THAT(report.failed_start(0, {1 << 8, "exited with code 1"}).what(),
              HasSubstr("exited with code 1: too little memory"));
}

TEST_F(Report, OfAFailedCallSaysWhatMayBeHalfWritten) {
  const auto id = publish("broadcast");
  calls.in_flight(id).writes = {"weights"};
  pool.fail(1, id, 1, "no memory");
  const Error error = report.failed_call(id, 1);
  EXPECT_STREQ(error.what(),
               "rank 1 (cuda1, pid 101) failed in call 'broadcast' (phase function): no memory\n"
               "  may be half written: 'weights'");
  EXPECT_EQ(error.kind(), ErrorKind::function);
  EXPECT_THAT(error.failure().undefined, ElementsAre("weights"));
  EXPECT_THAT(report.abandoned_call(id).what(), HasSubstr("call 'broadcast' was abandoned"));
}

TEST_F(Report, OfALossWaitsALittleForPeersOfThisNodeThatStillWait) {
  const auto id = publish("step");
  pool.set_phase(0, id, protocol::Phase::collective);
  pool.die(1, FakePool::killed());
  const auto time = [&] {  // the shortest, because other programs may use the machine
    Clock::duration shortest = Clock::duration::max();
    for (int attempt = 0; attempt < 5; ++attempt) {
      const auto begin = Clock::now();
      static_cast<void>(master::session::describe_seen_loss(pool, report));
      shortest = std::min(shortest, Clock::now() - begin);
    }
    return shortest;
  };
  EXPECT_GE(time(), Milliseconds(100));
  pool.control().header().place = {.node = 0, .nodes = 2, .first_rank = 1, .local_size = 1};
  EXPECT_LT(time(), Milliseconds(100)) << "rank 0 is on another node now";
}

/// On several nodes, ranks that wait for one that is late may be at different steps of a collective.
TEST(ReportOfSeveralNodes, OfALateCallBlamesWhoIsFurthestBackInItsCollectives) {
  FakePool pool{4};
  master::calls::CommandTable calls;
  calls.attach(pool.control());
  master::failures::FailureReport report{pool, calls, {"cpu0", "cpu1", "cpu2", "cpu3"}};
  calls.next(protocol::RankSet::all(3), Milliseconds(10));  // rank 3 takes no part, and so is not behind
  calls.next_in_flight().what = "step";
  const auto id = calls.publish();
  const std::array<std::uint64_t, 3> steps{3, 4, 2};
  for (int rank = 0; rank < 3; ++rank) {
    pool.set_phase(rank, id, protocol::Phase::collective);
    pool.control().worker(rank).collective_command.store(id);
    pool.control().worker(rank).collective_step.store(steps[static_cast<std::size_t>(rank)]);
  }
  EXPECT_EQ(report.late_call(id).failure().rank, 2);
}

}  // namespace
}  // namespace syncrun::test

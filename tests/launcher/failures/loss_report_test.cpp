// The messages about workers that fail, are late or are lost, tested without processes.

#include "launcher/failures/loss_report.hpp"

#include <gmock/gmock.h>

#include <array>
#include <csignal>
#include <cstdint>

#include "launcher/process/spawn.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

class Report : public testing::Test {
 protected:
  Report() { calls.attach(pool.control()); }

  std::uint64_t publish(const char* what, Milliseconds limit = Milliseconds(0)) {
    calls.next(calls.all_ranks(), limit);
    calls.next_in_flight().what = what;
    return calls.publish();
  }
  Error loss(int rank, const ChildEnd& end) {
    pool.die(rank, end);
    Failure failure = report.describe_loss(rank, end);
    const std::string where = report.place_loss(failure);
    return report.lost(std::move(failure), where, end.wait_status.value_or(0));
  }
  static ChildEnd killed() { return {SIGKILL, describe_status(SIGKILL)}; }

  FakePool pool{2};
  CallTable calls;
  LossReport report{pool, calls, {"cpu0", "cuda1"}};
};

TEST_F(Report, OfALossNamesRankDeviceProcessCallPhaseCauseAndLastLines) {
  const auto id = publish("step");
  pool.set_phase(1, id, Phase::function);
  pool.stderr_lines[1] = {"one", "two"};
  const Error error = loss(1, {3 << 8, "exited with code 3"});
  EXPECT_STREQ(error.what(),
               "rank 1 (cuda1, pid 101) was lost in call 'step' (phase function): exited with code 3\n"
               "  [rank 1] one\n"
               "  [rank 1] two");
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.native_code(), 3 << 8);
  EXPECT_EQ(error.failure().rank, 1);
  EXPECT_EQ(error.failure().pid, 101);
  EXPECT_EQ(error.failure().device, "cuda1");
  EXPECT_EQ(error.failure().call, "step");
  EXPECT_EQ(error.failure().phase, "function");
  EXPECT_EQ(error.failure().cause, "exited with code 3");
  EXPECT_THAT(error.failure().last_stderr, ElementsAre("one", "two"));
}

TEST_F(Report, OfALossBetweenCallsNamesNoCall) {
  const auto id = publish("step");
  pool.set_phase(1, id, Phase::idle);
  const Error error = loss(1, killed());
  EXPECT_THAT(error.what(), HasSubstr("was lost (idle): "));
  EXPECT_EQ(error.failure().call, "");
}

TEST_F(Report, OfAKillSaysWhatMayBeBehindIt) {
  pool.kill_note = ", the machine ran out of memory";
  const Error error = loss(0, killed());
  EXPECT_THAT(error.what(), HasSubstr("SIGKILL"));
  EXPECT_THAT(error.what(), HasSubstr(", the machine ran out of memory"));
}

TEST_F(Report, OfAWorkerThatCouldNotStartGivesItsReason) {
  WorkerSlot& slot = pool.control().worker(0);
  slot.start.store(StartState::failed);
  put_text(slot.reason, "no such device");
  pool.set_phase(0, 0, Phase::device);
  EXPECT_STREQ(report.failed_start(0, {1 << 8, "exited with code 1"}).what(),
               "rank 0 (cpu0, pid 100) was lost while starting (phase device): no such device");
}

TEST_F(Report, OfAWorkerWithoutASlotTakesItsReasonFromWhatItPrinted) {
  pool.stderr_lines[0] = {std::string(kCannotStart) + "too little memory"};
  EXPECT_THAT(report.failed_start(0, {1 << 8, "exited with code 1"}).what(),
              HasSubstr("exited with code 1: too little memory"));
}

TEST_F(Report, OfAReplacedWorkerNamesTheProcessThatWasLost) {
  pool.die(1, killed());
  Failure failure = report.describe_loss(1, killed());
  pool.replace({{.rank = 1}});
  const Error error = report.lost(std::move(failure), "(idle)", SIGKILL, "\n  rank 1 is new");
  EXPECT_THAT(error.what(), HasSubstr("rank 1 (cuda1, pid 101) was lost"));
  EXPECT_THAT(error.what(), HasSubstr("\n  rank 1 is new"));
  EXPECT_EQ(report.describe_rank(1), "rank 1 (cuda1, pid 201)");
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

TEST_F(Report, OfALateCallBlamesWhoIsInItsFunction) {
  const auto id = publish("step", Milliseconds(250));
  pool.set_phase(0, id, Phase::vote);
  pool.set_phase(1, id, Phase::function);
  const Error error = report.late_call(id);
  EXPECT_EQ(error.kind(), ErrorKind::timeout);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.failure().cause, "deadline");
  EXPECT_EQ(error.failure().call, "step");
  EXPECT_EQ(error.failure().ranks.size(), 2U);
  EXPECT_THAT(error.what(),
              HasSubstr("rank 1 (cuda1, pid 101) is in phase function at the deadline: call 'step' did not "
                        "finish within 250 ms"));
}

TEST_F(Report, OfALateCallBlamesWhoIsStoppedFirst) {
  const auto id = publish("step", Milliseconds(250));
  pool.set_phase(0, id, Phase::function);
  pool.set_phase(1, id, Phase::function);
  pool.stop_signals[1] = SIGSTOP;
  EXPECT_THAT(report.late_call(id).what(),
              HasSubstr("rank 1 (cuda1, pid 101) is in phase function, stopped by SIGSTOP"));
}

TEST_F(Report, OfALateCallBlamesNobodyWhoTakesNoPart) {
  calls.next(RankSet::only(0), Milliseconds(250));
  calls.next_in_flight().what = "step";
  const auto id = calls.publish();
  pool.set_phase(0, id, Phase::function);
  pool.stop_signals[1] = SIGSTOP;
  const Error error = report.late_call(id);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_FALSE(error.failure().ranks[1].takes_part);
}

/// On several nodes, ranks that wait for one that is late may be at different steps of a collective.
TEST(ReportOfSeveralNodes, OfALateCallBlamesWhoIsFurthestBackInItsCollectives) {
  FakePool pool{4};
  CallTable calls;
  calls.attach(pool.control());
  LossReport report{pool, calls, {"cpu0", "cpu1", "cpu2", "cpu3"}};
  calls.next(RankSet::all(3), Milliseconds(10));  // rank 3 takes no part, and so is not behind
  calls.next_in_flight().what = "step";
  const auto id = calls.publish();
  const std::array<std::uint64_t, 3> steps{3, 4, 2};
  for (int rank = 0; rank < 3; ++rank) {
    pool.set_phase(rank, id, Phase::collective);
    pool.control().worker(rank).collective_command.store(id);
    pool.control().worker(rank).collective_step.store(steps[static_cast<std::size_t>(rank)]);
  }
  EXPECT_EQ(report.late_call(id).failure().rank, 2);
}

TEST_F(Report, OfALateStartBlamesWhoIsNotReady) {
  pool.control().worker(0).start.store(StartState::ready);
  pool.set_phase(0, 0, Phase::idle);
  pool.set_phase(1, 0, Phase::device);
  const Error error = report.late_start(Milliseconds(300));
  EXPECT_EQ(error.rank(), 1);
  EXPECT_THAT(error.what(),
              HasSubstr("rank 1 (cuda1, pid 101) is in phase device at the deadline: it did not start within "
                        "300 ms"));
}

}  // namespace
}  // namespace syncrun::test

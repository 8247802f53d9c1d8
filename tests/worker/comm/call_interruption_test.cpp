// What interrupts the waits of a rank in a command, and what a rank leaves of a command that it skips.

#include "worker/comm/call_interruption.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "common/os/segment.hpp"
#include "worker/comm/end_if_stuck.hpp"
#include "worker/comm/meetings.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail {
namespace {

/// Rank 0 of two, in a command.
class InterruptionOfACall : public testing::Test {
 protected:
  static constexpr std::uint64_t kId = 5;

  InterruptionOfACall() {
    attachment_.segment = os::Segment::create(os::Segment::kSmallestReservation);
    attachment_.control = protocol::ControlBlock(attachment_.segment.base(), 2);
    attachment_.world_size = 2;
    attachment_.place = protocol::NodePlace::alone(2);
    command().id = kId;
    command().ranks = protocol::RankSet::all(2);
  }
  protocol::Command& command() { return attachment_.control.command_in(kId); }

  worker::process::Attachment attachment_;
  worker::comm::CallInterruption interruption_{attachment_};
};

TEST_F(InterruptionOfACall, IsItsFailureOnAnotherRankIfPeersAreNeeded) {
  interruption_.begin(command(), worker::comm::CallInterruption::Peers::not_needed);
  command().failed.store(kId);
  EXPECT_NO_THROW(interruption_.check());
  interruption_.note_that_peers_are_needed();
  EXPECT_THROW(interruption_.check(), worker::process::Abandoned);
}

TEST_F(InterruptionOfACall, IsTheLossOfAWorkerInAnyCase) {
  interruption_.begin(command(), worker::comm::CallInterruption::Peers::not_needed);
  attachment_.control.header().lost.store(1);
  EXPECT_THROW(interruption_.check(), worker::process::SessionLost);
  EXPECT_NE(attachment_.slot().released_ns.load(), 0);
}

// A command on which this one depends has failed, so the rank skips it without a begin.
TEST_F(InterruptionOfACall, LeavesNoStepsOfAnEarlierCommandInItsSlot) {
  command().ranks = protocol::RankSet::only(0);
  worker::comm::Meetings meetings{attachment_, os::WaitPolicy::yielding()};
  meetings.begin(command());
  meetings.step({interruption_});
  command().id = kId + 10;
  meetings.leave(command());
  EXPECT_EQ(attachment_.control.outbox(command(), 0).collective_steps, 0U);
  EXPECT_EQ(attachment_.slot().collective_command.load(), kId + 10);
}

class StuckForALostPeer : public InterruptionOfACall {
 protected:
  static constexpr std::chrono::milliseconds kShort{1};

  StuckForALostPeer() { attachment_.control.header().respawns = true; }
  void lose(int rank) { attachment_.control.worker(rank).is_lost.store(1); }
  /// The worker is in the call for ever.
  [[noreturn]] void stay() {
    const worker::comm::EndIfStuck connecting(attachment_, command().ranks, kShort);
    for (;;) ::pause();
  }
  void come_through() { const worker::comm::EndIfStuck connecting(attachment_, command().ranks, kShort); }
};

TEST_F(StuckForALostPeer, AWorkerEndsAndSaysWhy) {
  lose(1);
  EXPECT_EXIT(stay(), testing::KilledBySignal(SIGKILL), "connected GPUs when rank 1 was lost");
}

TEST_F(StuckForALostPeer, AWorkerThatComesThroughLives) {
  lose(1);
  come_through();
}

}  // namespace
}  // namespace syncrun::detail

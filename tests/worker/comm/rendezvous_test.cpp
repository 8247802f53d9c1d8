// The ranks of a session, as threads on one control block. The tests check the values that they leave for each other,
// their meetings, and what ends their waits.

#include "worker/comm/rendezvous.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/common/error_text.hpp"
#include "tests/worker/comm/ranks_as_threads.hpp"
#include "worker/comm/call_interruption.hpp"
#include "worker/process/failure.hpp"

namespace syncrun::detail {
namespace {

using std::chrono::milliseconds;

constexpr protocol::MeetingPurpose kCommunicator{.kind = protocol::MeetingPurpose::Kind::making_communicator};

/// An interruption that the test turns on.
class Switch final : public worker::process::Interruption {
 public:
  bool is_set() const noexcept override { return is_on_; }
  [[noreturn]] void raise() const override { throw worker::process::Abandoned(); }
  void turn_on() { is_on_ = true; }

 private:
  std::atomic<bool> is_on_ = false;
};

class RendezvousInSegment : public RanksAsThreads {
 protected:
  static void put_number(MeetingRank& rank, std::uint64_t key, std::int64_t number) {
    rank.rendezvous.put(key, std::as_bytes(std::span(&number, 1)), kEndless);
  }
  static std::int64_t get_number(MeetingRank& rank, int from, std::uint64_t key,
                                 const worker::process::WaitLimits& limits = kEndless) {
    std::int64_t number = -1;
    rank.rendezvous.get(from, key, std::as_writable_bytes(std::span(&number, 1)), limits);
    return number;
  }
};

TEST_F(RendezvousInSegment, GivesEveryRankWhatAnotherOneHasLeft) {
  const auto thrown = on_every_rank([](MeetingRank& rank) {
    put_number(rank, 1, 100 + rank.attachment.rank);
    for (int from = 0; from < rank.attachment.world_size; ++from) EXPECT_EQ(get_number(rank, from, 1), 100 + from);
  });
  EXPECT_EQ(thrown, all(""));
}

TEST_F(RendezvousInSegment, WaitsForTheValueOfTheKeyThatIsAskedFor) {
  put_number(ranks_[0], 1, 11);
  std::jthread late([this] {
    std::this_thread::sleep_for(milliseconds(20));
    put_number(ranks_[0], 2, 22);
  });
  EXPECT_EQ(get_number(ranks_[1], 0, 2), 22);
}

TEST_F(RendezvousInSegment, RefusesAValueThatIsTooLong) {
  const std::vector<std::byte> value(worker::comm::Rendezvous::kMostBytes + 1);
  EXPECT_THROW(ranks_[0].rendezvous.put(1, value, kEndless), Error);
}

TEST_F(RendezvousInSegment, HoldsEveryRankUntilTheLastOneComes) {
  std::atomic<int> arrived = 0;
  const auto thrown = on_every_rank([&](MeetingRank& rank) {
    for (int round = 1; round <= 200; ++round) {
      ++arrived;
      rank.rendezvous.barrier(kCommunicator, kEndless);
      EXPECT_GE(arrived.load(), round * rank.attachment.world_size);
    }
  });
  EXPECT_EQ(thrown, all(""));
}

TEST_F(RendezvousInSegment, TellsRanksThatMeetForDifferentPurposesOrSteps) {
  const auto thrown = on_every_rank([](MeetingRank& rank) {
    rank.rendezvous.barrier(rank.attachment.rank == 0 ? protocol::MeetingPurpose{} : kCommunicator, kEndless);
  });
  const std::string set_up = " calls one that has to be set up first";
  EXPECT_EQ(thrown, all("ranks disagree in a collective: rank 0 calls barrier, rank 1" + set_up));
  const auto in_steps = on_every_rank([](MeetingRank& rank) {
    const auto step = static_cast<std::uint8_t>(rank.attachment.rank == 2 ? 1 : 0);
    rank.rendezvous.barrier({.kind = protocol::MeetingPurpose::Kind::connecting_peers, .detail = step}, kEndless);
  });
  EXPECT_EQ(in_steps, all("ranks disagree in a collective: rank 0" + set_up + ", rank 2" + set_up));
}

TEST_F(RendezvousInSegment, TellsARankThatCallsACollectiveInstead) {
  const auto thrown = on_every_rank([](MeetingRank& rank) {
    if (rank.attachment.rank != 0) return rank.rendezvous.barrier(kCommunicator, kEndless);
    rank.meetings.meet({protocol::kNotInSegment, 8, 1, 0, protocol::CollectiveKind::all_reduce, DType::float32,
                        Reduction::sum, 0, protocol::MeetingPurpose{}},
                       kEndless);
  });
  EXPECT_EQ(thrown, all("ranks disagree in a collective: rank 0 calls all_reduce of 8 float32 (sum), rank 1 calls one "
                        "that has to be set up first"));
}

TEST_F(RendezvousInSegment, EndsAWaitAtItsDeadline) {
  const worker::process::WaitLimits soon{kNothing, milliseconds(30)};
  const std::string text = "the other ranks did not come within 30 ms";
  EXPECT_EQ(test::error_text([&] { get_number(ranks_[0], 1, 1, soon); }, ErrorKind::timeout), text);
  EXPECT_EQ(test::error_text([&] { ranks_[0].rendezvous.barrier(kCommunicator, soon); }, ErrorKind::timeout), text);
}

/// A meeting first waits until peers have read what this rank brought to an earlier command. Then it waits for the
/// peers. One deadline limits both waits.
TEST_F(RendezvousInSegment, HasOneDeadlineForAllThatAMeetingWaitsFor) {
  EXPECT_EQ(on_every_rank([](MeetingRank& rank) { rank.rendezvous.barrier(kCommunicator, kEndless); }), all(""));
  begin(kMeetingCommand + 1, protocol::RankSet::all(kWorldSize));

  constexpr milliseconds kDeadline{3000};
  std::atomic<os::Clock::time_point> read_at{};
  std::jthread peers([&] {
    std::this_thread::sleep_for(kDeadline * 4 / 5);
    for (const int peer : {1, 2}) finish(kMeetingCommand, peer);
    read_at = os::Clock::now();
  });
  EXPECT_THROW(ranks_[0].rendezvous.barrier(kCommunicator, {kNothing, kDeadline}), Error);
  const os::Clock::time_point given_up_at = os::Clock::now();
  peers.join();
  EXPECT_LT(given_up_at, read_at.load() + kDeadline);
}

TEST_F(RendezvousInSegment, LooksOnceWhereTheDeadlineIsZero) {
  const worker::process::WaitLimits at_once{kNothing, milliseconds(0)};
  EXPECT_THROW(get_number(ranks_[0], 1, 1, at_once), Error);
  put_number(ranks_[1], 1, 7);
  EXPECT_EQ(get_number(ranks_[0], 1, 1, at_once), 7);
}

TEST_F(RendezvousInSegment, EndsWaitsThatAreInterrupted) {
  Switch interruption;
  const worker::process::WaitLimits limits{interruption};
  std::jthread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    interruption.turn_on();
  });
  EXPECT_THROW(get_number(ranks_[0], 1, 1, limits), worker::process::Abandoned);
  EXPECT_THROW(ranks_[0].rendezvous.barrier(kCommunicator, limits), worker::process::Abandoned);
  EXPECT_THROW(ranks_[0].rendezvous.put(1, {}, limits), worker::process::Abandoned);
}

/// The events that interrupt waits in a command of a session.
class RendezvousInACall : public RendezvousInSegment {
 protected:
  RendezvousInACall() {
    interruption_.begin(control_.command_in(kMeetingCommand), worker::comm::CallInterruption::Peers::needed);
  }
  void fail() { control_.command_in(kMeetingCommand).failed.store(kMeetingCommand); }
  void lose_a_worker() { control_.header().lost.store(1); }

  worker::comm::CallInterruption interruption_{ranks_[0].attachment};
};

TEST_F(RendezvousInACall, KeepsTheMemoryOfTheRankUntilItsPeersAreDoneOrLost) {
  constexpr std::size_t kBytes = std::size_t{1} << 16U;
  os::SharedHeap arena(segment_, std::uint64_t{32} << 20U, std::uint64_t{16} << 20U);
  worker::comm::LeftMemory memory(ranks_[0].attachment, arena);
  worker::comm::CallInterruption interruption(ranks_[0].attachment, &memory);
  interruption.begin(control_.command_in(kMeetingCommand), worker::comm::CallInterruption::Peers::needed);
  const auto array_of_next_command = [&] {
    memory.collect();
    const auto array = arena.allocate(kBytes, os::SharedHeap::Contents::any, "an array");
    arena.free(array, os::SharedHeap::Giveback::later);
    return array;
  };
  const auto array = array_of_next_command();
  EXPECT_EQ(array_of_next_command(), array);
  fail();
  EXPECT_THROW(interruption.check(), worker::process::Abandoned);
  EXPECT_EQ(array_of_next_command(), array);
  EXPECT_NE(array_of_next_command(), array) << "peers may write to what was freed after the failure";
  finish(kMeetingCommand, 1);
  EXPECT_NE(array_of_next_command(), array);
  control_.worker(2).is_lost.store(1);
  EXPECT_EQ(array_of_next_command(), array);
}

TEST_F(RendezvousInACall, EndsARendezvousWhenAWorkerIsLost) {
  std::jthread watcher([this] {
    std::this_thread::sleep_for(milliseconds(20));
    lose_a_worker();
    control_.header().to_peers.wake();
  });
  EXPECT_THROW(ranks_[0].rendezvous.barrier(kCommunicator, {interruption_}), worker::process::SessionLost);
}

}  // namespace
}  // namespace syncrun::detail

// Replayable functions on a fake GPU that counts. The tests check which calls it captures, and which it launches again.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/function_entry.hpp"
#include "syncrun/error.hpp"
#include "tests/worker/devices/off_host_device.hpp"
#include "worker/call/running_call.hpp"
#include "worker/comm/call_interruption.hpp"

namespace syncrun::detail {
namespace {

constexpr std::uint64_t kRepeatedCommand = 1;
constexpr std::uint64_t kFunctionAt = std::uint64_t{16} << 20U;
constexpr std::uint64_t kSharesAt = std::uint64_t{17} << 20U;

class CountingGpu final : public test::OffHostDevice {
 public:
  using OffHostDevice::OffHostDevice;
  void begin_capture() override {
    ++captures;
    OffHostDevice::begin_capture();
  }
  std::unique_ptr<DeviceGraph> end_capture() override {
    if (!can_capture) throw Error(ErrorKind::cuda, "the body waited");
    return OffHostDevice::end_capture();
  }
  void launch(DeviceGraph& graph) override {
    ++launches;
    OffHostDevice::launch(graph);
  }

  bool can_capture = true;
  int captures = 0;
  int launches = 0;
};

/// Rank 0 of three.
class Replay : public testing::Test {
 protected:
  static constexpr int kWorldSize = 3;

  Replay() {
    attachment_.segment = Segment::create(Segment::kSmallestReservation);
    attachment_.control = ControlBlock(attachment_.segment.base(), kWorldSize);
    attachment_.world_size = kWorldSize;
    attachment_.place = NodePlace::alone(kWorldSize);
  }

  /// Runs a call without arguments. Only its ranks and its number of rows can differ from those of the call before.
  /// -1 is a call without rows. `shares` says where the shares of ranks with weights begin.
  void call(const RankSet& ranks, std::int64_t rows = -1, const std::vector<std::int64_t>& shares = {}) {
    Command& command = attachment_.control.command_in(kRepeatedCommand);
    command.id = kRepeatedCommand;
    command.ranks = ranks;
    command.comm = ranks.is_single() ? CommChoice::alone() : CommChoice::devices(CommChoice::kOfSession);
    auto& payload = command.begin<CallPayload>();
    payload.function = kFunctionAt;
    payload.rows = rows;
    payload.share_begins = shares.empty() ? 0 : kSharesAt;
    std::copy(shares.begin(), shares.end(), attachment_.segment.at<std::int64_t>(kSharesAt));
    command.has_comm = has_comm;
    running_.begin(command, kRepeatedCommand);
    while (running_.next_slice())
      why_not = running_.replay([](void* test) { static_cast<Replay*>(test)->body(); }, this, capture);
  }

  void body() {
    ++runs;
    if (fails_after_captures && gpu_.captures != 0) throw Error(ErrorKind::nccl, "the communicator is unusable");
  }

  bool fails_after_captures = false;
  bool has_comm = false;
  Capture capture = Capture::required;
  int runs = 0;         // of the body
  std::string why_not;  // of the last call
  Attachment attachment_;
  SharedHeap arena_;
  std::atomic<std::uint64_t> consumed_ = 0;
  OutgoingMemory outgoing_{arena_, consumed_};
  CallInterruption interruption_{attachment_};
  Meetings meetings_{attachment_, WaitPolicy::yielding()};
  CpuComm comm_{attachment_, meetings_, interruption_};
  CountingGpu gpu_{attachment_.segment, arena_, comm_};
  MappedFiles files_;
  Communicators comms_{attachment_, arena_, comm_, gpu_};
  VariableCopies variables_{attachment_, gpu_, comms_, [this] { running_.note_stale_recordings(); }};
  RunningCall running_{{attachment_, gpu_, comms_, arena_, files_, outgoing_, variables_}};
};

TEST_F(Replay, RecordsTheSecondCallAndLaunchesItFromThenOn) {
  const RankSet all = RankSet::all(kWorldSize);
  call(all);
  EXPECT_EQ(gpu_.launches, 0);
  call(all);
  call(all);
  EXPECT_EQ(gpu_.captures, 1);
  EXPECT_EQ(gpu_.launches, 2);
}

TEST_F(Replay, RecordsACallOfOtherRanksByItself) {
  RankSet first_two = RankSet::only(0);
  first_two.add(1);
  RankSet first_and_last = RankSet::only(0);
  first_and_last.add(2);
  for (const RankSet& ranks : {RankSet::all(kWorldSize), RankSet::only(0), first_two, first_and_last}) {
    const int launches_before = gpu_.launches;
    call(ranks);
    EXPECT_EQ(gpu_.launches, launches_before) << "of another set of ranks";
    call(ranks);
    EXPECT_EQ(gpu_.launches, launches_before + 1);
  }
  EXPECT_EQ(gpu_.captures, 4);
}

// The function may have used the position and the number of its rows on the host, as the arguments of a kernel.
TEST_F(Replay, RecordsACallWithOtherRowsByItself) {
  attachment_.rank = 1;
  RankSet first_two = RankSet::only(0);
  first_two.add(1);
  struct Call {
    RankSet ranks;
    std::int64_t rows;
  };
  // Rank 1 has no rows, then rows 3 to 5, rows 4 to 7, and rows 4 to 7 of a call of other ranks.
  for (const Call& one : {Call{RankSet::all(kWorldSize), -1}, Call{RankSet::all(kWorldSize), 9},
                          Call{RankSet::all(kWorldSize), 12}, Call{first_two, 8}}) {
    const int launches_before = gpu_.launches;
    call(one.ranks, one.rows);
    EXPECT_EQ(gpu_.launches, launches_before) << "of another number of rows, or other first row";
    call(one.ranks, one.rows);
    call(one.ranks, one.rows);
    EXPECT_EQ(gpu_.launches, launches_before + 2);
  }
  EXPECT_EQ(gpu_.captures, 4);
}

// An average that was recorded has the weights of all ranks.
TEST_F(Replay, RecordsACallWithOtherRowsOfPeersByItself) {
  has_comm = true;
  const RankSet all = RankSet::all(kWorldSize);
  call(all, 12, {0, 4, 8, 12});
  call(all, 12, {0, 4, 8, 12});
  EXPECT_EQ(gpu_.launches, 1);
  call(all, 12, {0, 4, 6, 12});
  EXPECT_EQ(gpu_.launches, 1) << "ranks 1 and 2 have other weights in an average";
  call(all, 12, {0, 4, 6, 12});
  EXPECT_EQ(gpu_.launches, 2);
}

TEST_F(Replay, FailsIfTheWorkCannotBeCaptured) {
  const RankSet all = RankSet::all(kWorldSize);
  gpu_.can_capture = false;
  call(all);
  EXPECT_THROW(call(all), Error);
  EXPECT_EQ(gpu_.launches, 0);
}

TEST_F(Replay, RunsWorkThatNeedNotBeCapturedAndSaysWhyOnce) {
  const RankSet all = RankSet::all(kWorldSize);
  capture = Capture::if_possible;
  gpu_.can_capture = false;
  call(all);
  EXPECT_EQ(why_not, "");
  call(all);
  EXPECT_NE(why_not.find("the body waited"), std::string::npos) << why_not;
  EXPECT_EQ(runs, 3) << "the body was captured in vain, and then ran";
  gpu_.can_capture = true;
  call(all);
  call(all, 12);  // with other rows, it would be recorded by itself
  call(all, 12);
  EXPECT_EQ(why_not, "");
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(gpu_.captures, 1);
  EXPECT_EQ(gpu_.launches, 0);
}

TEST_F(Replay, IsNotTriedForEverIfTheBodyFailsAfterEachCapture) {
  const RankSet all = RankSet::all(kWorldSize);
  capture = Capture::if_possible;
  gpu_.can_capture = false;
  fails_after_captures = true;
  call(all);
  for (int i = 0; i < 10; ++i) EXPECT_THROW(call(all), Error);
  EXPECT_EQ(gpu_.captures, 3) << "an error that has nothing to do with the capture may come once or twice";
  fails_after_captures = false;
  call(all);
  EXPECT_EQ(gpu_.captures, 3);
  EXPECT_EQ(gpu_.launches, 0);
}

TEST_F(Replay, LaunchesWorkThatNeedNotBeCapturedIfItCanBe) {
  const RankSet all = RankSet::all(kWorldSize);
  capture = Capture::if_possible;
  for (int i = 0; i < 4; ++i) call(all);
  EXPECT_EQ(gpu_.captures, 1);
  EXPECT_EQ(gpu_.launches, 3);
}

/// The copy of a Value on rank 0.
class ReplayWithAValue : public Replay {
 protected:
  static constexpr std::uint64_t kValueAt = std::uint64_t{18} << 20U;

  ReplayWithAValue() {
    give_memory(0, 8);
    record();
  }
  ~ReplayWithAValue() override { variables_.free({.first = kValueAt}); }
  VariableEntry& entry() { return *attachment_.segment.at<VariableEntry>(kValueAt); }
  /// A transfer gives the copy room for so many elements.
  void give_memory(int rank, std::int64_t elements) {
    constexpr std::uint64_t kPartsAt = std::uint64_t{19} << 20U;
    entry().dtype = DType::float32;
    entry().dimensions = 1;
    attachment_.segment.at<TransferSlot>(kPartsAt)[rank] = {kValueAt, 0, {elements}, true, true};
    variables_.run_transfer({.direction = TransferDirection::to_variable, .variables_count = 1, .parts = kPartsAt});
  }
  void record() {
    for (int i = 0; i < 3; ++i) call(RankSet::only(0));
    ASSERT_EQ(gpu_.captures, ++captures_);
  }

  int captures_ = 0;
};

TEST_F(ReplayWithAValue, GoesOnWhileTheCopyStays) {
  give_memory(0, 8);
  call(RankSet::only(0));
  EXPECT_EQ(gpu_.captures, captures_);
}

TEST_F(ReplayWithAValue, EndsWhenTheCopyIsDropped) {
  SpareCopy(entry().copies()[0]).mark(1, SpareCopy::Role::none);
  EXPECT_EQ(variables_.drop_spare(1, 2), 32U);
  record();
}

TEST_F(ReplayWithAValue, EndsWhenTheCopyGetsOtherMemory) {
  give_memory(0, 16);
  record();
}

TEST_F(ReplayWithAValue, EndsWhenAMoveBringsALargerCopy) {
  entry().copies()[1].extents = {32};
  Command& move = attachment_.control.command_in(kRepeatedCommand + 1);
  move.id = kRepeatedCommand + 1;
  move.begin<MovePayload>() = {.variable = kValueAt, .from = 1};
  variables_.run_move(move);
  record();
}

TEST_F(ReplayWithAValue, EndsWhenTheValueIsFreed) {
  variables_.free({.first = kValueAt});
  record();
}

}  // namespace
}  // namespace syncrun::detail

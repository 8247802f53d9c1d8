// Replayable functions on a fake GPU that counts. The tests check which calls it captures, and which it launches again.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/function_entry.hpp"
#include "syncrun/arguments.hpp"
#include "syncrun/error.hpp"
#include "tests/worker/devices/off_host_device.hpp"
#include "worker/call/running_call.hpp"
#include "worker/comm/call_interruption.hpp"

namespace syncrun::detail {
namespace {

constexpr std::uint64_t kRepeatedCommand = 1;
constexpr std::uint64_t kFunctionAt = std::uint64_t{16} << 20U;
constexpr std::uint64_t kSharesAt = std::uint64_t{17} << 20U;

class CountingGraphs final : public worker::devices::GraphRecorder {
 public:
  explicit CountingGraphs(worker::devices::GraphRecorder& graphs) : graphs_(graphs) {}
  void begin_capture() override {
    ++captures;
    graphs_.begin_capture();
  }
  std::unique_ptr<worker::devices::DeviceGraph> end_capture() override {
    if (!can_capture) throw Error(ErrorKind::cuda, "the body waited");
    return graphs_.end_capture();
  }
  const char* abandon_capture() noexcept override {
    graphs_.abandon_capture();
    return why_failed;
  }
  void launch(worker::devices::DeviceGraph& graph) override {
    ++launches;
    graphs_.launch(graph);
  }

  bool can_capture = true;
  const char* why_failed = nullptr;
  int captures = 0;
  int launches = 0;

 private:
  worker::devices::GraphRecorder& graphs_;
};

/// Rank 0 of three.
class Replay : public testing::Test {
 protected:
  static constexpr int kWorldSize = 3;

  Replay() {
    attachment_.segment = os::Segment::create(os::Segment::kSmallestReservation);
    attachment_.control = protocol::ControlBlock(attachment_.segment.base(), kWorldSize);
    attachment_.world_size = kWorldSize;
    attachment_.place = protocol::NodePlace::alone(kWorldSize);
  }

  /// Runs a call without arguments. Only its ranks and its number of rows can differ from those of the call before.
  /// -1 is a call without rows. `shares` says where the shares of ranks with weights begin.
  void call(const protocol::RankSet& ranks, std::int64_t rows = -1, const std::vector<std::int64_t>& shares = {}) {
    protocol::Command& command = attachment_.control.command_in(kRepeatedCommand);
    command.id = kRepeatedCommand;
    command.ranks = ranks;
    command.comm = ranks.is_single() ? protocol::CommChoice::alone()
                                     : protocol::CommChoice::devices(protocol::CommChoice::kOfSession);
    auto& payload = command.begin<protocol::CallPayload>();
    payload.function = kFunctionAt;
    payload.rows = rows;
    payload.share_begins = shares.empty() ? 0 : kSharesAt;
    std::copy(shares.begin(), shares.end(), attachment_.segment.at<std::int64_t>(kSharesAt));
    command.has_comm = has_comm;
    running_.begin(command, kRepeatedCommand);
    std::vector<std::uint64_t> present = state;
    if (!state.empty()) running_.recordings().note_state(present);
    present.assign(present.size(), 0);  // the body may change it
    while (running_.next_slice()) {
      if (value) running_.recordings().note_value(std::as_bytes(std::span(&*value, 1)), value_for);
      why_not = running_.replay({[](void* test) { static_cast<Replay*>(test)->body(); }, this}, capture);
    }
  }

  worker::devices::DeviceParts parts() {
    worker::devices::DeviceParts counted = gpu_.parts();
    counted.graphs = &graphs_;
    return counted;
  }

  void body() {
    ++runs;
    if (reads_on_host) reads_on_host();
    if (fails_after_captures && graphs_.captures != 0) throw Error(ErrorKind::nccl, "the communicator is unusable");
  }

  const protocol::RankSet all = protocol::RankSet::all(kWorldSize);
  bool fails_after_captures = false;
  std::function<void()> reads_on_host;  // called by the body
  bool has_comm = false;
  std::optional<double> value;  // of a parameter by value
  worker::call::Recordings::ValueFor value_for{};
  std::vector<std::uint64_t> state;  // of the object whose method the body is
  Capture capture = Capture::required;
  int runs = 0;         // of the body
  std::string why_not;  // of the last call
  worker::process::Attachment attachment_;
  os::SharedHeap arena_;
  std::atomic<std::uint64_t> consumed_ = 0;
  worker::comm::OutgoingMemory outgoing_{arena_, consumed_};
  worker::comm::CallInterruption interruption_{attachment_};
  worker::comm::Meetings meetings_{attachment_, os::WaitPolicy::yielding()};
  worker::comm::CpuComm comm_{attachment_, meetings_, interruption_};
  test::OffHostDevice gpu_{attachment_.segment, arena_, comm_};
  CountingGraphs graphs_{*gpu_.parts().graphs};
  worker::call::MappedFiles files_;
  worker::devices::Communicators comms_{attachment_, arena_, comm_, gpu_};
  worker::call::VariableCopies variables_{attachment_, gpu_.parts(), comms_,
                                          [this] { running_.recordings().note_stale(); }};
  worker::call::RunningCall running_{attachment_, parts(), comms_, files_, outgoing_, variables_};
};

TEST_F(Replay, RecordsTheSecondCallAndLaunchesItFromThenOn) {
  call(all);
  EXPECT_EQ(graphs_.launches, 0);
  call(all);
  call(all);
  EXPECT_EQ(graphs_.captures, 1);
  EXPECT_EQ(graphs_.launches, 2);
}

TEST_F(Replay, RecordsACallOfOtherRanksByItself) {
  protocol::RankSet first_and_last = protocol::RankSet::only(0);
  first_and_last.add(2);
  for (const protocol::RankSet& ranks : {all, protocol::RankSet::only(0), protocol::RankSet::all(2), first_and_last}) {
    const int launches_before = graphs_.launches;
    call(ranks);
    EXPECT_EQ(graphs_.launches, launches_before) << "of another set of ranks";
    call(ranks);
    EXPECT_EQ(graphs_.launches, launches_before + 1);
  }
  EXPECT_EQ(graphs_.captures, 4);
}

// The function may have used the position and the number of its rows on the host, as the arguments of a kernel.
TEST_F(Replay, RecordsACallWithOtherRowsByItself) {
  attachment_.rank = 1;
  struct Call {
    protocol::RankSet ranks;
    std::int64_t rows;
  };
  // Rank 1 has no rows, then rows 3 to 5, rows 4 to 7, and rows 4 to 7 of a call of other ranks.
  for (const Call& one : {Call{all, -1}, Call{all, 9}, Call{all, 12}, Call{protocol::RankSet::all(2), 8}}) {
    const int launches_before = graphs_.launches;
    call(one.ranks, one.rows);
    EXPECT_EQ(graphs_.launches, launches_before) << "of another number of rows, or other first row";
    call(one.ranks, one.rows);
    call(one.ranks, one.rows);
    EXPECT_EQ(graphs_.launches, launches_before + 2);
  }
  EXPECT_EQ(graphs_.captures, 4);
}

// An average that was recorded has the weights of all ranks.
TEST_F(Replay, RecordsACallWithOtherRowsOfPeersByItself) {
  has_comm = true;
  call(all, 12, {0, 4, 8, 12});
  call(all, 12, {0, 4, 8, 12});
  EXPECT_EQ(graphs_.launches, 1);
  call(all, 12, {0, 4, 6, 12});
  EXPECT_EQ(graphs_.launches, 1) << "ranks 1 and 2 have other weights in an average";
  call(all, 12, {0, 4, 6, 12});
  EXPECT_EQ(graphs_.launches, 2);
}

// The body's host code may have read the value.
TEST_F(Replay, RecordsACallWithAnotherValueByItself) {
  for (const double each : {0.5, -0.5}) {
    value = each;
    const int launches_before = graphs_.launches;
    call(all);
    EXPECT_EQ(graphs_.launches, launches_before) << "of another value";
    call(all);
    EXPECT_EQ(graphs_.launches, launches_before + 1);
  }
  value = 0.5;
  call(all);
  EXPECT_EQ(graphs_.captures, 2);
  EXPECT_EQ(graphs_.launches, 3);
}

// The body's host code may have read it.
TEST_F(Replay, RecordsACallInAnotherStateOfItsObjectByItself) {
  for (const std::vector<std::uint64_t>& each : std::vector<std::vector<std::uint64_t>>{{}, {1, 0}, {1, 4}}) {
    state = each;
    const int launches_before = graphs_.launches;
    call(all);
    EXPECT_EQ(graphs_.launches, launches_before) << "of another state";
    call(all);
    EXPECT_EQ(graphs_.launches, launches_before + 1);
  }
  state = {1, 0};
  call(all);
  EXPECT_EQ(graphs_.captures, 3);
  EXPECT_EQ(graphs_.launches, 4) << "the graph of a former state was kept";
  state.clear();
  call(all);
  EXPECT_EQ(graphs_.launches, 5) << "the state of a call does not stay for the next one";
}

TEST_F(Replay, KeepsGraphsWhileValuesAreAlwaysNewAndSaysSoOnce) {
  capture = Capture::if_possible;
  value = 0;
  call(all);
  call(all);
  int warnings = 0;
  for (int i = 1; i <= 100; ++i) {
    value = i;
    call(all);
    if (why_not.empty()) continue;
    ++warnings;
    EXPECT_NE(why_not.find("DeviceScalar"), std::string::npos) << why_not;
  }
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(runs, 102);
  value = 0;
  call(all);
  EXPECT_EQ(runs, 102) << "its graph was dropped";
  EXPECT_EQ(graphs_.launches, 2);
  for (value = -1; *value > -50; --*value) {
    call(all);
    EXPECT_EQ(why_not, "") << "it was said before the launch";
  }
}

TEST_F(Replay, DoesNotCountOneValueForEachShape) {
  capture = Capture::if_possible;
  for (const double each : {0.25, 0.5}) {
    value = each;
    for (std::int64_t rows = 1; rows <= 32; ++rows) {
      call(all, rows);
      EXPECT_EQ(why_not, "") << rows;
    }
  }
  EXPECT_EQ(graphs_.captures, 0);
}

TEST_F(Replay, SaysThatValuesOfALaterRankAreAlwaysNew) {
  attachment_.rank = 2;
  capture = Capture::if_possible;
  for (int i = -40; i < 20; ++i) {
    EXPECT_EQ(why_not, "") << "the first rank says it of values that all ranks have";
    value = i;
    using ValueFor = worker::call::Recordings::ValueFor;
    value_for = i < 0 ? ValueFor::all_ranks : ValueFor::own_rank;
    call(all);
  }
  EXPECT_NE(why_not.find("20 different arguments by value"), std::string::npos) << why_not;
}

TEST_F(Replay, SaysThatStatesOfAnyRankAreAlwaysNew) {
  for (attachment_.rank = 0; attachment_.rank < kWorldSize; ++attachment_.rank) {
    ++attachment_.segment.at<protocol::FunctionEntry>(kFunctionAt)->id;  // another function
    for (std::uint64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(why_not, "") << i;
      state = {i};
      call(all);
    }
    EXPECT_NE(why_not.find("20 different arguments by value or results of replay_state()"), std::string::npos)
        << why_not;
    why_not.clear();
  }
}

TEST_F(Replay, DropsTheGraphThatWasUsedLeastRecently) {
  const auto record = [this](int of) {
    value = of;
    call(all);
    call(all);
  };
  for (int i = 0; i < 64; ++i) record(i);
  value = 0;
  call(all);
  EXPECT_EQ(runs, 128) << "64 graphs are kept";
  record(64);
  value = 0;
  call(all);
  EXPECT_EQ(runs, 130);
  value = 1;
  call(all);
  EXPECT_EQ(runs, 131);
}

TEST_F(Replay, FailsIfTheWorkCannotBeCaptured) {
  graphs_.can_capture = false;
  call(all);
  EXPECT_THROW(call(all), Error);
  EXPECT_EQ(graphs_.launches, 0);
}

TEST_F(Replay, RunsWorkThatNeedNotBeCapturedAndSaysWhyOnce) {
  capture = Capture::if_possible;
  graphs_.can_capture = false;
  call(all);
  EXPECT_EQ(why_not, "");
  call(all);
  EXPECT_NE(why_not.find("the body waited"), std::string::npos) << why_not;
  EXPECT_EQ(runs, 3) << "the body was captured in vain, and then ran";
  graphs_.can_capture = true;
  call(all);
  call(all, 12);  // with other rows, it would be recorded by itself
  call(all, 12);
  EXPECT_EQ(why_not, "");
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(graphs_.captures, 1);
  EXPECT_EQ(graphs_.launches, 0);
}

TEST_F(Replay, SaysWhatTheDeviceKnowsOfAFailedCapture) {
  capture = Capture::if_possible;
  graphs_.can_capture = false;
  graphs_.why_failed = "the reason";
  call(all);
  call(all);
  EXPECT_NE(why_not.find("captured: the reason."), std::string::npos) << why_not;
}

TEST_F(Replay, IsNotTriedForEverIfTheBodyFailsAfterEachCapture) {
  capture = Capture::if_possible;
  graphs_.can_capture = false;
  fails_after_captures = true;
  call(all);
  for (int i = 0; i < 10; ++i) EXPECT_THROW(call(all), Error);
  EXPECT_EQ(graphs_.captures, 3) << "an error that has nothing to do with the capture may come once or twice";
  fails_after_captures = false;
  call(all);
  EXPECT_EQ(graphs_.captures, 3);
  EXPECT_EQ(graphs_.launches, 0);
}

TEST_F(Replay, LaunchesWorkThatNeedNotBeCapturedIfItCanBe) {
  capture = Capture::if_possible;
  for (int i = 0; i < 4; ++i) call(all);
  EXPECT_EQ(graphs_.captures, 1);
  EXPECT_EQ(graphs_.launches, 3);
}

/// A graph would keep the value of the call that was captured.
TEST_F(Replay, RefusesADeviceScalarThatHostCodeReadsDuringACapture) {
  const float number = 2.5F;
  const DeviceScalar<float> scalar({nullptr, &number, running_.recordings().is_capturing()});
  reads_on_host = [&scalar] { EXPECT_EQ(scalar.value(), 2.5F); };
  call(all);
  EXPECT_EQ(runs, 1);
  try {
    call(all);
    ADD_FAILURE() << "it was captured";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("DeviceScalar::value()"), std::string::npos) << error.what();
  }
  EXPECT_EQ(scalar.value(), 2.5F) << "the capture has ended";
  capture = Capture::if_possible;
  call(all);
  EXPECT_NE(why_not.find("DeviceScalar::value()"), std::string::npos) << why_not;
  call(all);
  EXPECT_EQ(graphs_.launches, 0);
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
  protocol::VariableEntry& entry() { return *attachment_.segment.at<protocol::VariableEntry>(kValueAt); }
  /// A transfer gives the copy room for so many elements.
  void give_memory(int rank, std::int64_t elements) {
    constexpr std::uint64_t kPartsAt = std::uint64_t{19} << 20U;
    entry().dtype = DType::float32;
    entry().dimensions = 1;
    attachment_.segment.at<protocol::TransferSlot>(kPartsAt)[rank] = {kValueAt, 0, {elements}, true, true};
    variables_.run_transfer(
        {.direction = protocol::TransferDirection::to_variable, .variables_count = 1, .parts = kPartsAt});
  }
  void record() {
    for (int i = 0; i < 3; ++i) call(protocol::RankSet::only(0));
    ASSERT_EQ(graphs_.captures, ++captures_);
  }

  int captures_ = 0;
};

TEST_F(ReplayWithAValue, GoesOnWhileTheCopyStays) {
  give_memory(0, 8);
  call(protocol::RankSet::only(0));
  EXPECT_EQ(graphs_.captures, captures_);
}

TEST_F(ReplayWithAValue, EndsWhenTheCopyIsDropped) {
  protocol::SpareCopy(entry().copies()[0]).mark(1, protocol::SpareCopy::Role::none);
  EXPECT_EQ(variables_.drop_spare(1, 2), 32U);
  record();
}

TEST_F(ReplayWithAValue, EndsWhenTheCopyGetsOtherMemory) {
  give_memory(0, 16);
  record();
}

TEST_F(ReplayWithAValue, EndsWhenAMoveBringsALargerCopy) {
  entry().copies()[1].extents = {32};
  protocol::Command& move = attachment_.control.command_in(kRepeatedCommand + 1);
  move.id = kRepeatedCommand + 1;
  move.begin<protocol::MovePayload>() = {.variable = kValueAt, .from = 1};
  variables_.run_move(move);
  record();
}

TEST_F(ReplayWithAValue, EndsWhenTheValueIsFreed) {
  variables_.free({.first = kValueAt});
  record();
}

}  // namespace
}  // namespace syncrun::detail

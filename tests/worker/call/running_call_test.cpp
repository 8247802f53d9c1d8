// A call on a CPU device, without a worker process: the rows that each rank takes slice by slice, and the outputs that
// it delivers.

#include "worker/call/running_call.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/os/segment.hpp"
#include "worker/comm/call_interruption.hpp"

namespace syncrun::detail {
namespace {

constexpr std::uint64_t kOnlyCommand = 1;
constexpr std::uint64_t kHeapAt = std::uint64_t{16} << 20U;
constexpr std::uint64_t kHeapBytes = std::uint64_t{16} << 20U;
constexpr OutputType kMeanOfDoubles{DType::float64, Reduction::avg, 0};
constexpr OutputType kSumOfDoubles{DType::float64, Reduction::sum, 0};

/// First row and number of rows of a slice.
using Slice = std::pair<std::int64_t, std::int64_t>;
using Slices = std::vector<Slice>;

class RunningCallOnCpu : public testing::Test {
 protected:
  static constexpr int kWorldSize = 3;

  RunningCallOnCpu() {
    attachment_.segment = Segment::create(Segment::kSmallestReservation);
    attachment_.control = ControlBlock(attachment_.segment.base(), kWorldSize);
    attachment_.world_size = kWorldSize;
    arena_ = SharedHeap(attachment_.segment, kHeapAt, kHeapBytes);
    command().id = kOnlyCommand;
    command().ranks = RankSet::all(kWorldSize);
  }

  Command& command() const { return attachment_.control.command_in(kOnlyCommand); }
  Outbox& outbox() const { return attachment_.control.outbox(command(), attachment_.rank); }
  CallPayload& begin_call(std::int64_t rows, std::int64_t slices) const {
    auto& call = command().begin<CallPayload>();
    call.rows = rows;
    call.slices = slices;
    return call;
  }
  Slices slices_of(int rank) {
    attachment_.rank = rank;
    running_.begin(command(), command().id);
    Slices slices;
    while (running_.next_slice()) slices.emplace_back(running_.first_row(), running_.slice_rows());
    return slices;
  }
  double delivered(std::size_t output) const {
    double value = 0;
    std::memcpy(&value, outbox().outputs[output].scalar.data(), sizeof(value));
    return value;
  }

  Attachment attachment_;
  SharedHeap arena_;
  std::atomic<std::uint64_t> consumed_ = 0;
  OutgoingMemory outgoing_{arena_, consumed_};
  CallInterruption interruption_{attachment_};
  Meetings meetings_{attachment_, WaitPolicy::yielding()};
  SegmentRendezvous rendezvous_{attachment_, meetings_};
  CpuComm comm_{attachment_, meetings_, interruption_};
  std::unique_ptr<WorkerDevice> device_ =
      make_cpu_device({attachment_, arena_, comm_, nullptr, rendezvous_, interruption_, [] {}, {}});
  MappedFiles files_;
  Communicators comms_{attachment_, arena_, comm_, *device_};
  VariableCopies variables_{attachment_, *device_, comms_, [] {}};
  RunningCall running_{{attachment_, *device_, comms_, arena_, files_, outgoing_, variables_}};
};

TEST_F(RunningCallOnCpu, DividesRowsAmongTheRanksAndThenInSlices) {
  begin_call(11, 2);
  EXPECT_EQ(slices_of(0), (Slices{{0, 2}, {2, 2}}));
  EXPECT_EQ(slices_of(1), (Slices{{4, 2}, {6, 2}}));
  EXPECT_EQ(slices_of(2), (Slices{{8, 2}, {10, 1}}));
}

TEST_F(RunningCallOnCpu, TakesTheSharesThatTheMasterGivesToRanksWithWeights) {
  CallPayload& call = begin_call(11, 2);
  call.share_begins = arena_.allocate(4 * sizeof(std::int64_t), SharedHeap::Contents::any, "shares");
  const std::vector<std::int64_t> begins{0, 7, 7, 11};
  std::copy(begins.begin(), begins.end(), attachment_.segment.at<std::int64_t>(call.share_begins));
  EXPECT_EQ(slices_of(0), (Slices{{0, 4}, {4, 3}}));
  EXPECT_EQ(slices_of(1), Slices());
  EXPECT_EQ(slices_of(2), (Slices{{7, 2}, {9, 2}}));
  command().has_comm = true;
  EXPECT_EQ(slices_of(1), (Slices{{7, 0}, {7, 0}})) << "ranks meet in slices without rows";
}

TEST_F(RunningCallOnCpu, TakesTheRowsThatTheMasterCountedWhereCopiesOfPeersHaveNoShapeYet) {
  CallPayload& call = begin_call(9, 1);
  call.rows_are_local = true;
  call.arguments_count = 1;
  command().arguments[0] = {
      .kind = ArgumentKind::sliced,
      .dtype = DType::float64,
      .dimensions = 1,
      .offset = arena_.allocate(VariableEntry::bytes(kWorldSize), SharedHeap::Contents::zero, "x")};
  call.batch_s_by_rank = arena_.allocate(kWorldSize * sizeof(RowsSlot), SharedHeap::Contents::any, "rows");
  auto* const slots = attachment_.segment.at<RowsSlot>(call.batch_s_by_rank);
  for (int rank = 0; rank < kWorldSize; ++rank) slots[rank] = {Rows::Kind::all, 0, rank + 2, 0};
  EXPECT_EQ(slices_of(2), (Slices{{5, 4}}));
}

TEST_F(RunningCallOnCpu, GivesAllRowsToTheOnlyRankOfACall) {
  begin_call(5, 1);
  command().ranks = RankSet::only(1);
  EXPECT_EQ(slices_of(1), (Slices{{0, 5}}));
}

TEST_F(RunningCallOnCpu, LeavesOutSlicesWithoutRowsUnlessRanksMeetInThem) {
  begin_call(2, 1);
  EXPECT_EQ(slices_of(2), Slices());
  command().has_comm = true;
  EXPECT_EQ(slices_of(2), (Slices{{2, 0}}));
}

TEST_F(RunningCallOnCpu, RunsOnceWhereNothingHasRows) {
  begin_call(-1, 4);
  EXPECT_EQ(slices_of(1), (Slices{{0, 1}}));
}

TEST_F(RunningCallOnCpu, WeighsTheSlicesOfAMeanByTheirRows) {
  auto& call = begin_call(9, 2);  // three rows a rank, in slices of two and one
  call.outputs_count = 2;
  command().outputs[0] = kMeanOfDoubles;
  command().outputs[1] = kSumOfDoubles;
  running_.begin(command(), command().id);
  for (double value = 3; running_.next_slice(); value += 3) {
    running_.accept_scalar(0, kMeanOfDoubles, &value);
    running_.accept_scalar(1, kSumOfDoubles, &value);
  }
  running_.deliver(outbox());
  EXPECT_DOUBLE_EQ(delivered(0), (2 * 3 + 1 * 6) / 3.0);
  EXPECT_DOUBLE_EQ(delivered(1), 9);
  EXPECT_EQ(outbox().rows, 3);
  EXPECT_FALSE(outbox().is_empty);
}

TEST_F(RunningCallOnCpu, SaysThatARankWithoutRowsDeliversNothing) {
  begin_call(2, 1);
  EXPECT_EQ(slices_of(2), Slices());
  running_.deliver(outbox());
  EXPECT_TRUE(outbox().is_empty);
}

TEST_F(RunningCallOnCpu, KeepsWhatItDeliversUntilTheMasterHasConsumedIt) {
  auto& call = begin_call(-1, 1);
  call.outputs_count = 1;
  const OutputType vector{DType::float64, Reduction::sum, 1};
  command().outputs[0] = vector;
  running_.begin(command(), command().id);
  ASSERT_TRUE(running_.next_slice());
  running_.accept(0, vector, std::vector<std::int64_t>{4}, device_->allocate_output(4 * sizeof(double)));
  EXPECT_FALSE(running_.next_slice());
  running_.deliver(outbox());
  running_.end(kOnlyCommand);
  outgoing_.collect();
  EXPECT_NE(arena_.used_bytes(), 0U);
  consumed_ = kOnlyCommand;
  outgoing_.collect();
  EXPECT_EQ(arena_.used_bytes(), 0U);
}

TEST_F(RunningCallOnCpu, GivesBackWhatAFailedCallHasComputed) {
  auto& call = begin_call(-1, 1);
  call.outputs_count = 1;
  const OutputType vector{DType::float64, Reduction::sum, 1};
  command().outputs[0] = vector;
  running_.begin(command(), command().id);
  ASSERT_TRUE(running_.next_slice());
  running_.accept(0, vector, std::vector<std::int64_t>{4}, device_->allocate_output(4 * sizeof(double)));
  running_.discard();
  EXPECT_EQ(arena_.used_bytes(), 0U);
}

}  // namespace
}  // namespace syncrun::detail

// Outputs of a call on devices of different kinds: all of them go to shared memory, and the workers reduce the large
// ones there.

#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "tests/worker/comm/mixed_ranks.hpp"
#include "worker/call/running_call.hpp"

namespace syncrun::detail {
namespace {

constexpr std::uint64_t kCall = kMeetingCommand + 1;
constexpr std::size_t kLarge = 100'000;  // elements; large on every kind of device
constexpr std::size_t kMiddle = 5'000;   // large on CPU devices only

/// A rank that runs calls.
struct CallingRank {
  explicit CallingRank(MixedRank& rank)
      : variables(rank.attachment(), rank.device(), rank.comms(), [] {}),
        running({rank.attachment(), rank.device(), rank.comms(), rank.arena(), files, outgoing, variables}) {}
  std::atomic<std::uint64_t> consumed = 0;
  SharedHeap unused;
  OutgoingMemory outgoing{unused, consumed};
  MappedFiles files;
  VariableCopies variables;
  RunningCall running;
};

class MixedOutputs : public MixedRanks {
 protected:
  /// Every rank returns an array. Its elements are rank + 1. Ranks have 2, 1 and 1 rows.
  void deliver(DType dtype, Reduction reduction, std::size_t elements) {
    const OutputType type{dtype, reduction, 1};
    begin(kCall, everyone());
    Command& command = control_.command_in(kCall);
    command.comm = comm_;
    auto& call = command.begin<CallPayload>();
    call.rows = 4;
    call.slices = 1;
    call.outputs_count = 1;
    call.wanted_outputs = 1;
    command.outputs[0] = type;
    for (int rank = 0; rank < kWorldSize; ++rank) command.places[static_cast<std::size_t>(rank)] = 0;
    for (MixedRank& rank : mixed_) {
      RunningCall& running = calling_.emplace_back(rank).running;
      running.begin(command, command.id);
      ASSERT_TRUE(running.next_slice());
      OutputBuffer buffer = rank.device().allocate_output(elements * size_of(dtype));
      put(rank, buffer.data(), dtype, elements);
      running.accept(0, type, std::vector<std::int64_t>{static_cast<std::int64_t>(elements)}, std::move(buffer));
      ASSERT_FALSE(running.next_slice());
      running.deliver(outbox(rank.rank()));
    }
  }
  static void put(MixedRank& rank, void* to, DType dtype, std::size_t elements) {
    const auto fill = [=, value = rank.rank() + 1](void* host) {
      for (std::size_t i = 0; i < elements; ++i) {
        if (dtype == DType::int16) static_cast<std::int16_t*>(host)[i] = static_cast<std::int16_t>(value);
        else static_cast<float*>(host)[i] = static_cast<float>(value);
      }
    };
    if (rank.is_cpu()) return fill(to);
    rank.off_host().enqueue([=] { fill(test::host_view(to)); });
  }
  /// What each rank does once all ranks have voted.
  void reduce() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      RunningCall& running = calling_[static_cast<std::size_t>(rank)].running;
      if (running.may_reduce_outputs(outbox(rank))) running.reduce_outputs(outbox(rank));
    }
  }
  CommChoice comm_ = CommChoice::host();

  Outbox& outbox(int rank) { return control_.outbox(control_.command_in(kCall), rank); }
  template <class T>
  std::vector<T> shared(int rank, std::size_t elements) {
    const auto* const values = segment_.at<const T>(outbox(rank).outputs[0].offset);
    return {values, values + elements};
  }

  std::deque<CallingRank> calling_;
};

TEST_F(MixedOutputs, OfGpusAreInSharedMemoryBeforeTheVote) {
  deliver(DType::float32, Reduction::sum, kLarge);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_TRUE(outbox(rank).is_large);
    ASSERT_NE(outbox(rank).outputs[0].offset, 0U);
    EXPECT_EQ(shared<float>(rank, kLarge), std::vector<float>(kLarge, static_cast<float>(rank + 1)));
  }
}

TEST_F(MixedOutputs, AreReducedTogetherIfTheyAreLarge) {
  deliver(DType::float32, Reduction::sum, kLarge);
  reduce();
  EXPECT_NE(outbox(0).reduced_outputs, 0);
  EXPECT_EQ(shared<float>(0, kLarge), std::vector<float>(kLarge, 6));
  for (const int rank : {0, 2}) EXPECT_EQ(at(rank).off_host().reductions, 0) << "not through a communicator of GPUs";
}

TEST_F(MixedOutputs, AreAveragedByTheRowsOfTheRanks) {
  deliver(DType::float32, Reduction::avg, kLarge);
  reduce();
  EXPECT_EQ(shared<float>(0, kLarge), std::vector<float>(kLarge, (2 * 1 + 1 * 2 + 1 * 3) / 4.0F));
}

// NCCL has no such type, but all values are in host memory.
TEST_F(MixedOutputs, MayHaveAnyTypeAlsoIfTheyAreLarge) {
  deliver(DType::int16, Reduction::max, kLarge);
  reduce();
  EXPECT_NE(outbox(0).reduced_outputs, 0);
  EXPECT_EQ(shared<std::int16_t>(0, kLarge), std::vector<std::int16_t>(kLarge, 3));
}

TEST_F(MixedOutputs, AreLeftToTheMasterUnlessTheyAreLargeOnAllRanks) {
  deliver(DType::float32, Reduction::sum, kMiddle);
  reduce();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(outbox(rank).reduced_outputs, 0);
    EXPECT_EQ(shared<float>(rank, kMiddle), std::vector<float>(kMiddle, static_cast<float>(rank + 1)));
  }
}

class OutputsOfGpus : public MixedOutputs {
 protected:
  OutputsOfGpus() {
    comm_ = CommChoice::devices(CommChoice::kOfSession);
    mixed_.clear();
    control_.worker(1).device_kind = DeviceKind::cuda;
    for (MeetingRank& parts : ranks_) mixed_.emplace_back(parts);
  }
};

TEST_F(OutputsOfGpus, StayInDeviceMemoryForTheirCommunicator) {
  deliver(DType::float32, Reduction::sum, kLarge);
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(outbox(rank).outputs[0].offset, 0U);
  reduce();
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(at(rank).off_host().reductions, 1);
}

}  // namespace
}  // namespace syncrun::detail

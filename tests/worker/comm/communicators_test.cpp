// Which communicator a command uses.

#include "worker/comm/communicators.hpp"

#include <gtest/gtest.h>

#include "tests/worker/comm/mixed_ranks.hpp"

namespace syncrun::detail {
namespace {

RankSet set_of(std::initializer_list<int> ranks) {
  RankSet set;
  for (const int rank : ranks) set.add(rank);
  return set;
}

RankKinds kinds_of(std::initializer_list<DeviceKind> by_rank) {
  RankKinds kinds;
  for (const DeviceKind kind : by_rank) kinds.add(kind);
  return kinds;
}

constexpr DeviceKind kCpu = DeviceKind::cpu;
constexpr DeviceKind kCuda = DeviceKind::cuda;

TEST(CommWay, OfOneRankIsAlone) {
  for (const auto& kinds : {kinds_of({kCpu, kCuda}), kinds_of({kCuda, kCuda}), kinds_of({kCpu, kCpu})}) {
    EXPECT_EQ(kinds.way_of(set_of({1})), CommWay::alone);
  }
}

TEST(CommWay, OfCpusIsTheirCommunicatorInAnySession) {
  EXPECT_EQ(kinds_of({kCpu, kCpu, kCpu}).way_of(set_of({0, 2})), CommWay::devices);
  EXPECT_EQ(kinds_of({kCpu, kCuda, kCpu}).way_of(set_of({0, 2})), CommWay::devices);
}

TEST(CommWay, OfGpusIsTheirCommunicatorIfTheyAreTheSession) {
  const RankKinds gpus = kinds_of({kCuda, kCuda, kCuda});
  EXPECT_EQ(gpus.way_of(gpus.all_ranks()), CommWay::devices);
  EXPECT_EQ(gpus.way_of(set_of({0, 2})), CommWay::host) << "there is no communicator of these two";
  EXPECT_EQ(kinds_of({kCuda, kCuda, kCpu}).way_of(set_of({0, 1})), CommWay::host);
}

TEST(CommWay, OfBothKindsIsHostMemory) {
  const RankKinds both = kinds_of({kCuda, kCpu, kCuda});
  EXPECT_EQ(both.way_of(both.all_ranks()), CommWay::host);
  EXPECT_EQ(both.way_of(set_of({0, 1})), CommWay::host);
}

TEST(RankKinds, AreThoseOfTheSet) {
  const RankKinds both = kinds_of({kCuda, kCpu, kCuda});
  EXPECT_TRUE(both.kinds().is_mixed());
  EXPECT_TRUE(both.kinds_of(set_of({0, 1})).is_mixed());
  EXPECT_FALSE(both.kinds_of(set_of({0, 2})).has(kCpu));
  EXPECT_FALSE(both.kinds_of(set_of({1})).has(kCuda));
}

class CommunicatorsOfRanks : public MixedRanks {};

TEST_F(CommunicatorsOfRanks, AreChosenByTheSet) {
  const auto is_host = [](CommCore& comm) { return dynamic_cast<HostComm*>(&comm) != nullptr; };
  EXPECT_TRUE(is_host(at(0).comms().of(everyone())));
  EXPECT_TRUE(is_host(at(2).comms().of(set_of({1, 2}))));
  EXPECT_EQ(&at(0).comms().of(set_of({0})), &at(0).device().solo());
  EXPECT_EQ(&at(1).comms().of(everyone()), &at(1).device().comm()) << "a CPU device's is in host memory already";
}

TEST_F(CommunicatorsOfRanks, OfGpusOnlyAreTheirOwnUnlessTheUserWantsHostMemory) {
  control_.worker(1).device_kind = DeviceKind::cuda;
  MixedRank gpu(ranks_[0]);
  EXPECT_EQ(&gpu.comms().of(everyone()), &gpu.device().comm());
  EXPECT_NE(dynamic_cast<HostComm*>(&gpu.comms().through_host(everyone())), nullptr);
  EXPECT_EQ(&gpu.comms().through_host(set_of({0})), &gpu.device().solo());
}

}  // namespace
}  // namespace syncrun::detail

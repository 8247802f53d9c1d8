// Which communicator a command uses.

#include "worker/comm/communicators.hpp"

#include <gtest/gtest.h>

#include "common/protocol/rank_kinds.hpp"
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

TEST(RankKinds, AreThoseOfTheSet) {
  const RankKinds both = kinds_of({kCuda, kCpu, kCuda});
  EXPECT_TRUE(both.kinds().is_mixed());
  EXPECT_TRUE(both.kinds_of(set_of({0, 1})).is_mixed());
  EXPECT_FALSE(both.kinds_of(set_of({0, 2})).has(kCpu));
  EXPECT_FALSE(both.kinds_of(set_of({1})).has(kCuda));
}

class CommunicatorsOfRanks : public MixedRanks {};

TEST_F(CommunicatorsOfRanks, AreThoseThatTheMasterHasChosen) {
  const auto is_host = [](CommCore& comm) { return dynamic_cast<HostComm*>(&comm) != nullptr; };
  EXPECT_TRUE(is_host(at(0).comms().of(command_of(everyone()))));
  EXPECT_TRUE(is_host(at(2).comms().of(command_of(set_of({1, 2})))));
  const auto alone = command_of(set_of({0}), CommChoice::alone());
  EXPECT_EQ(&at(0).comms().of(alone), &at(0).device().solo());
  const auto pair = command_of(set_of({0, 2}), CommChoice::devices(1));
  EXPECT_EQ(&at(0).comms().of(pair), &at(0).device().comm(pair));
}

TEST_F(CommunicatorsOfRanks, OfACpuDeviceAreInHostMemoryAlready) {
  const auto all = command_of(everyone());
  EXPECT_EQ(dynamic_cast<HostComm*>(&at(1).comms().of(all)), nullptr);
  EXPECT_EQ(&at(1).comms().of(all), &at(1).device().comm(all));
}

TEST_F(CommunicatorsOfRanks, GoThroughHostMemoryIfTheUserWantsThat) {
  EXPECT_NE(dynamic_cast<HostComm*>(&at(0).comms().through_host(command_of(set_of({0, 2})))), nullptr);
  EXPECT_EQ(&at(0).comms().through_host(command_of(set_of({0}), CommChoice::alone())), &at(0).device().solo());
}

}  // namespace
}  // namespace syncrun::detail

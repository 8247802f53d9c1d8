// The checks of a call against the devices of its ranks.

#include "master/calls/body_check.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "syncrun/error.hpp"

namespace syncrun::detail {
namespace {

using testing::ThrowsMessage;

constexpr master::devices::DeviceId cpu(int index) { return {DeviceKind::cpu, index}; }
constexpr master::devices::DeviceId cuda(int index) { return {DeviceKind::cuda, index}; }

protocol::RankSet set_of(std::initializer_list<int> ranks) {
  protocol::RankSet set;
  for (const int rank : ranks) set.add(rank);
  return set;
}

const master::devices::RankDevices kBoth({cuda(0), cuda(1), cpu(0), cpu(5)});

TEST(BodyCheck, CutsLongLists) {
  const master::devices::RankDevices many(
      std::vector<master::devices::DeviceId>{cpu(0), cpu(1), cpu(2), cpu(3), cpu(4)});
  EXPECT_EQ(many.describe(many.all_ranks(), DeviceKind::cpu), "rank 0 (cpu0), rank 1 (cpu1), rank 2 (cpu2) and 2 more");
  EXPECT_EQ(many.describe(set_of({1, 3, 4}), DeviceKind::cpu), "rank 1 (cpu1), rank 3 (cpu3), rank 4 (cpu4)");
}

TEST(BodyCheck, WantsConstructorsForAllDevicesOfTheSession) {
  EXPECT_NO_THROW(master::calls::check_constructors({DeviceKind::cpu, DeviceKind::cuda}, kBoth));
  const auto without_cpu = [] { master::calls::check_constructors({DeviceKind::cuda}, kBoth); };
  EXPECT_THAT(without_cpu, ThrowsMessage<Error>("the replicated object cannot be built on CPU devices, and the session "
                                                "has rank 2 (cpu0), rank 3 (cpu5): give it a constructor or a factory "
                                                "that takes a CpuWorker&, or no worker"));
}

}  // namespace
}  // namespace syncrun::detail

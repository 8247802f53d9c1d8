// What --dry-run says about devices. tests/launcher/syncrun/command_test.cpp has the whole output.

#include "launcher/syncrun/dry_run.hpp"

#include <gtest/gtest.h>

#include "common/os/wait.hpp"
#include "launcher/devices/placement.hpp"

namespace syncrun::detail {
namespace {

TEST(DryRun, ListsDevicesOfOneKindWithTheirNames) {
  const ChosenDevices cpus{{{DeviceKind::cpu, 4}, {DeviceKind::cpu, 2}}, {{"main", 1}}};
  EXPECT_EQ(describe_ranks(cpus), "  rank 0: cpu4\n  rank 1: cpu2 (main)\n");
}

TEST(DryRun, SaysHowManyThreadsTheRanksOfBothKindsGet) {
  const ChosenDevices both{{{DeviceKind::cuda, 0}, {DeviceKind::cpu, 7}}, {{"gpu", 0}}};
  const int threads = threads_for(both.by_rank, 1, usable_cores());
  EXPECT_EQ(describe_ranks(both), "  rank 0: cuda0 (gpu), 1 thread\n  rank 1: cpu7, " + std::to_string(threads) +
                                      (threads == 1 ? " thread\n" : " threads\n"));
}

}  // namespace
}  // namespace syncrun::detail

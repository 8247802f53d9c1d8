// What --dry-run says about devices. tests/master/command_line/command_test.cpp has the whole output.

#include "master/command_line/dry_run.hpp"

#include <gtest/gtest.h>

#include "common/os/wait.hpp"
#include "master/devices/placement.hpp"

namespace syncrun::detail {
namespace {

TEST(DryRun, SaysHowManyThreadsTheRanksOfBothKindsGet) {
  const master::devices::ChosenDevices both{{{DeviceKind::cuda, 0}, {DeviceKind::cpu, 7}}, {{"gpu", 0}}};
  const int threads = master::devices::threads_for(both.by_rank, 1, os::usable_cores());
  EXPECT_EQ(master::command_line::describe_ranks(both), "  rank 0: cuda0 (gpu), 1 thread\n  rank 1: cpu7, " +
                                                            std::to_string(threads) +
                                                            (threads == 1 ? " thread\n" : " threads\n"));
}

}  // namespace
}  // namespace syncrun::detail

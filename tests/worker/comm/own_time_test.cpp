// The time that a rank works in a measured call, without its collectives.

#include "worker/comm/own_time.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace syncrun::detail {
namespace {

using namespace std::chrono_literals;

TEST(OwnTime, LeavesOutWhatIsBetweenPauseAndResume) {
  OwnTime time;
  time.begin();
  std::this_thread::sleep_for(5ms);
  time.pause();
  std::this_thread::sleep_for(400ms);
  time.resume();
  std::this_thread::sleep_for(5ms);
  const auto own = time.end();
  EXPECT_GE(own, 10ms);
  EXPECT_LT(own, 300ms);
}

TEST(OwnTime, CountsNothingOutsideOfAMeasuredCall) {
  OwnTime time;
  time.pause();
  time.resume();
  EXPECT_EQ(time.end(), 0ns);
}

TEST(OwnTime, StartsAnewWithEachCall) {
  OwnTime time;
  time.begin();
  std::this_thread::sleep_for(400ms);
  time.end();
  time.begin();
  EXPECT_LT(time.end(), 300ms);
}

}  // namespace
}  // namespace syncrun::detail

// The time that a rank works in a measured call, without its collectives.

#include "worker/comm/own_time.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace syncrun::detail {
namespace {

using namespace std::chrono_literals;

TEST(OwnTime, LeavesOutWhatIsBetweenPauseAndResume) {
  OwnTime time;
  const auto begin = std::chrono::steady_clock::now();
  time.begin();
  std::this_thread::sleep_for(5ms);
  time.pause();
  std::this_thread::sleep_for(50ms);
  time.resume();
  std::this_thread::sleep_for(5ms);
  const auto own = time.end();
  EXPECT_GE(own, 10ms);
  EXPECT_LE(own, std::chrono::steady_clock::now() - begin - 50ms);
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
  std::this_thread::sleep_for(50ms);
  time.end();
  const auto begin = std::chrono::steady_clock::now();
  time.begin();
  EXPECT_LE(time.end(), std::chrono::steady_clock::now() - begin);
}

}  // namespace
}  // namespace syncrun::detail

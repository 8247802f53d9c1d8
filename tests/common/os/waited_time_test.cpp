#include "common/os/waited_time.hpp"

#include <gtest/gtest.h>

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;

TEST(AwakeTime, GrowsByWhatItsThreadSeesAndALapBesides) {
  os::AwakeTime awake;
  const auto begin = os::Clock::now();
  awake.look(begin);
  awake.look(begin + 90ms);
  EXPECT_EQ(awake.until(begin + 90ms), 90ms);
  EXPECT_EQ(awake.until(begin + 120ms), 120ms);
  EXPECT_EQ(awake.until(begin + 1h), 190ms) << "its thread has not looked for an hour: it was stopped";
}

/// A thread that gets no core is not stopped. Its time counts, so that its deadlines pass.
TEST(WaitedTime, CountsTimeWithoutACore) {
  const auto begin = os::Clock::now();
  os::WaitedTime waited(begin);
  os::Clock::duration counted{};
  for (int lap = 0; lap < 5; ++lap) {
    // A busy loop is like a lap without a core: the thread is runnable all the time.
    const auto until = os::Clock::now() + 200ms;
    while (os::Clock::now() < until) {
    }
    counted += waited.since_last_look(os::Clock::now());
  }
  EXPECT_GE(counted, 500ms);
}

}  // namespace

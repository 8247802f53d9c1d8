#include "common/os/waited_time.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;

TEST(WaitedTime, CountsWhatPassesBetweenTwoLooks) {
  const auto begin = Clock::now();
  WaitedTime waited(begin);
  EXPECT_EQ(waited.since_last_look(begin + 30ms), 30ms);
  EXPECT_EQ(waited.since_last_look(begin + 130ms), 100ms);
}

TEST(WaitedTime, CountsNoJump) {
  const auto begin = Clock::now();
  WaitedTime waited(begin);
  EXPECT_LE(waited.since_last_look(begin + 1h), WaitedTime::kLongestLap);
  EXPECT_EQ(waited.since_last_look(begin + 1h + 10ms), 10ms);
}

/// Another process stops this one for a second, while this one sleeps in short naps as waits do.
TEST(WaitedTime, CountsNoTimeInWhichTheProcessWasStopped) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    std::this_thread::sleep_for(200ms);
    ::kill(parent, SIGSTOP);
    std::this_thread::sleep_for(1s);
    ::kill(parent, SIGCONT);
    ::_exit(0);
  }
  const auto begin = Clock::now();
  WaitedTime waited(begin);
  Clock::duration counted{};
  while (Clock::now() - begin < 1500ms) {
    std::this_thread::sleep_for(20ms);
    counted += waited.since_last_look(Clock::now());
  }
  const auto all = Clock::now() - begin;
  ::waitpid(child, nullptr, 0);
  EXPECT_LT(counted, all - 700ms) << "the stop took a second, of which one lap at most counts";
  EXPECT_GT(counted, 100ms);
}

TEST(AwakeTime, GrowsByWhatItsThreadSeesAndALapBesides) {
  AwakeTime awake;
  const auto begin = Clock::now();
  awake.look(begin);
  awake.look(begin + 90ms);
  EXPECT_EQ(awake.until(begin + 90ms), 90ms);
  EXPECT_EQ(awake.until(begin + 120ms), 120ms);
  EXPECT_EQ(awake.until(begin + 1h), 190ms) << "its thread has not looked for an hour: it was stopped";
}

/// A thread that gets no core is not stopped. Its time counts, so that its deadlines pass.
TEST(WaitedTime, CountsTimeWithoutACore) {
  const auto begin = Clock::now();
  WaitedTime waited(begin);
  Clock::duration counted{};
  for (int lap = 0; lap < 5; ++lap) {
    // A busy loop is like a lap without a core: the thread is runnable all the time.
    const auto until = Clock::now() + 200ms;
    while (Clock::now() < until) {
    }
    counted += waited.since_last_look(Clock::now());
  }
  EXPECT_GE(counted, 500ms);
}

}  // namespace

#include "common/os/wait.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <vector>

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;

struct SharedWords {
  os::Doorbell bell;
  std::atomic<std::uint64_t> word;
};

class Waiting : public testing::TestWithParam<bool> {
 protected:
  os::WaitPolicy policy = GetParam() ? os::WaitPolicy::spinning() : os::WaitPolicy::yielding();
  SharedWords& words = *new (
      mmap(nullptr, sizeof(SharedWords), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) SharedWords{};
};
INSTANTIATE_TEST_SUITE_P(Policies, Waiting, testing::Bool());

TEST_P(Waiting, LooksAroundOncePerLapFromTheFirstOn) {
  const auto laps_within = [&](os::Milliseconds limit) {
    std::vector<os::Clock::time_point> laps{os::Clock::now()};
    os::Patience patience(limit);
    os::wait_until(
        words.bell, policy, patience, [] { return false; }, [] { return false; },
        [&](os::Clock::time_point now) { laps.push_back(now); });
    for (std::size_t lap = 1; lap < laps.size(); ++lap) EXPECT_GE(laps[lap] - laps[lap - 1], os::kLap);
    return laps.size() - 1;
  };
  EXPECT_GE(laps_within(5 * os::kLap), 1U);
  EXPECT_LE(laps_within(5 * os::kLap), 6U);
}

TEST_P(Waiting, DoesNotLookAroundInAShortWait) {
  int laps = 0;
  os::Patience patience(10s);
  const auto start = os::Clock::now();
  const auto woken = os::wait_until(
      words.bell, policy, patience, [&] { return os::Clock::now() - start > os::kLap / 4; }, [] { return false; },
      [&](os::Clock::time_point) { ++laps; });
  EXPECT_EQ(woken, os::Woken::ready);
  // On a busy machine, the wait may have been a long one after all.
  EXPECT_TRUE(laps == 0 || os::Clock::now() - start >= os::kLap);
}

TEST_P(Waiting, PingPongLosesNoWakeUp) {
  constexpr std::uint64_t kRounds = 20'000;
  const pid_t child = fork();
  const auto play = [&](std::uint64_t parity) {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t turn = 2 * round + parity;
      os::Patience patience(20s);
      os::WaitPolicy asleep;
      asleep.awake_for = 0us;
      if (os::wait_until(
              words.bell, asleep, patience, [&] { return words.word.load() == turn; }, [] { return false; }) !=
          os::Woken::ready) {
        return false;
      }
      words.word.store(turn + 1);
      words.bell.ring();
    }
    return true;
  };
  if (child == 0) _exit(play(1) ? 0 : 1);
  EXPECT_TRUE(play(0));
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Patience, CountsNoTimeInWhichTheProcessWasStopped) {
  os::Patience patience(2s);
  EXPECT_FALSE(patience.is_over(os::Clock::now() + 1h)) << "one lap counts at most half a second";
}

TEST(Patience, IsEndlessAtZero) {
  os::Patience patience(0ms);
  EXPECT_FALSE(patience.is_over(os::Clock::now() + 1h));
}

}  // namespace

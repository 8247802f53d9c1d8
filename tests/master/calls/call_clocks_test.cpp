// The clocks of calls in flight, tested without processes: which calls the time of a wait counts for.

#include "master/calls/call_clocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;

const protocol::RankSet kAll = protocol::RankSet::all(3);

class Clocks : public testing::Test {
 protected:
  std::uint64_t launch(const protocol::RankSet& ranks, os::Milliseconds limit) {
    const auto before =
        ++last == 1 ? master::calls::CallClocks::Before::nothing : master::calls::CallClocks::Before::calls;
    ranks_of.push_back(ranks);
    entries.push_back({last, entries.size()});
    clocks.reserve(entries.size());
    clocks.begin(entries.back().slot, limit, before);
    return last;
  }
  std::uint64_t launch(int rank, os::Milliseconds limit) { return launch(protocol::RankSet::only(rank), limit); }
  std::optional<std::uint64_t> wait(os::Clock::duration waited) {
    return clocks.count(
        entries, waited, [this](const Entry& entry) -> const protocol::RankSet& { return ranks_of[entry.slot]; },
        [this](int rank) { return done[static_cast<std::size_t>(rank)]; },
        [this](const Entry& entry) {
          return std::find(held_back.begin(), held_back.end(), entry.id) != held_back.end();
        });
  }

  struct Entry {
    std::uint64_t id;
    std::size_t slot;
  };
  std::vector<Entry> entries;
  std::vector<std::uint64_t> held_back;
  master::calls::CallClocks clocks{3};
  std::vector<std::uint64_t> done = std::vector<std::uint64_t>(3);
  std::uint64_t last = 0;
  std::vector<protocol::RankSet> ranks_of;  // by id of the call, from 1
};

TEST_F(Clocks, OfACallBehindAnotherBeginWhenThatIsOver) {
  launch(kAll, 0ms);
  launch(kAll, 1s);
  EXPECT_EQ(wait(10s), std::nullopt);
  done = {1, 1, 0};
  EXPECT_EQ(wait(10s), std::nullopt) << "rank 2 is still in the first";
  done = {1, 1, 1};
  EXPECT_EQ(wait(10s), std::nullopt) << "it was not the oldest when this wait began";
  EXPECT_EQ(wait(999ms), std::nullopt);
  EXPECT_EQ(wait(1ms), 2U);
}

TEST_F(Clocks, OfCallsOnDifferentRanksRunSideBySide) {
  launch(0, 0ms);
  launch(1, 500ms);
  launch(2, 300ms);
  launch(1, 100ms);
  EXPECT_EQ(wait(0ms), std::nullopt) << "who is the oldest is known from now on";
  EXPECT_EQ(wait(299ms), std::nullopt);
  EXPECT_EQ(clocks.least_left(), 1ms);
  EXPECT_EQ(wait(1ms), 3U);
  done = {0, 0, 3};
  EXPECT_EQ(wait(199ms), std::nullopt) << "the one behind on rank 1 waits";
  EXPECT_EQ(wait(1ms), 2U);
}

TEST_F(Clocks, OfACallThatIsHeldBackStandStillUntilItBegins) {
  launch(0, 0ms);
  const auto held = launch(1, 1s);  // depends on the first, which is on another rank
  launch(2, 5s);
  held_back = {held};
  EXPECT_EQ(wait(10s), std::nullopt);
  EXPECT_EQ(clocks.least_left(), 5s) << "only the clock of the third runs";
  EXPECT_EQ(wait(4s), std::nullopt);
  held_back = {};
  EXPECT_EQ(wait(500ms), std::nullopt) << "it was held back when this wait began";
  EXPECT_EQ(wait(400ms), std::nullopt);
  EXPECT_EQ(clocks.least_left(), 100ms) << "the clock of the third is the next to end";
  done = {0, 0, 3};
  EXPECT_EQ(wait(599ms), std::nullopt);
  EXPECT_EQ(clocks.least_left(), 1ms);
  EXPECT_EQ(wait(1ms), held);
}

TEST_F(Clocks, OfACallBehindOneThatIsHeldBackStandStillToo) {
  launch(0, 0ms);
  const auto held = launch(1, 0ms);
  const auto behind = launch(1, 1s);
  held_back = {held};
  EXPECT_EQ(wait(10s), std::nullopt);
  EXPECT_EQ(wait(10s), std::nullopt);
  held_back = {};
  done = {1, 2, 0};
  EXPECT_EQ(wait(10s), std::nullopt);
  EXPECT_EQ(wait(1s), behind);
}

TEST_F(Clocks, OfFinishedCallsStandStill) {
  launch(0, 100ms);
  launch(1, 0ms);
  done = {1, 0, 0};
  EXPECT_EQ(wait(10s), std::nullopt);
  EXPECT_EQ(clocks.least_left(), os::Clock::duration::max());
}

TEST_F(Clocks, CountHalfASecondAtMostBetweenTwoPollsAndNothingBeforeTheFirst) {
  EXPECT_EQ(clocks.poll(10s), 0s);
  EXPECT_EQ(clocks.poll(10'400ms), 400ms);
  EXPECT_EQ(clocks.poll(20s), 500ms);
  clocks.end_polling();
  EXPECT_EQ(clocks.poll(30s), 0s);
}

TEST_F(Clocks, BeginAnewForADebugger) {
  launch(kAll, 1s);
  EXPECT_EQ(wait(2s), 1U);
  clocks.restart(0);
  EXPECT_EQ(wait(999ms), std::nullopt);
  EXPECT_EQ(wait(1ms), 1U);
}

}  // namespace

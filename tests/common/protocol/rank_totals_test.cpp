#include "common/protocol/rank_totals.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace syncrun::test {
namespace {

using namespace detail::protocol;

class Totals : public testing::Test {
 protected:
  std::unique_ptr<RankTotals> totals_ = std::make_unique<RankTotals>();  // zeros, as in the segment
};

TEST_F(Totals, AddUpTheTimeOfEachPhase) {
  totals_->begin(50);
  totals_->enter(Phase::idle, 100);
  totals_->enter(Phase::function, 150);
  totals_->enter(Phase::collective, 170);
  totals_->enter(Phase::function, 200);
  totals_->enter(Phase::idle, 210);
  totals_->enter(Phase::function, 1000);
  const TotalsNow now = totals_->read(1007);
  EXPECT_EQ(now.of(Phase::idle), 50 + 790);
  EXPECT_EQ(now.of(Phase::function), 20 + 10 + 7) << "the phase that the rank is in counts too";
  EXPECT_EQ(now.of(Phase::collective), 30);
}

TEST_F(Totals, CountACallWhenItIsOver) {
  totals_->enter(Phase::idle, 100);
  totals_->enter(Phase::inputs, 110);
  totals_->note_call(7, false);
  totals_->enter(Phase::function, 120);
  EXPECT_EQ(totals_->read(130).of(Count::calls), 0);
  totals_->enter(Phase::idle, 150);
  totals_->enter(Phase::collective, 160);  // a command that is no call
  totals_->enter(Phase::idle, 190);
  totals_->enter(Phase::function, 200);
  totals_->note_call(5, true);
  totals_->enter(Phase::idle, 203);
  const TotalsNow now = totals_->read(300);
  EXPECT_EQ(now.of(Count::calls), 2);
  EXPECT_EQ(now.of(Count::call_ns), 40 + 3);
  EXPECT_EQ(now.of(Count::call_rows), 12);
  EXPECT_EQ(now.of(Count::steps), 1);
  EXPECT_EQ(now.of(Count::step_ns), 3);
  EXPECT_EQ(now.of(Count::step_rows), 5);
}

TEST_F(Totals, NeverBecomeSmallerWhenAWorkerIsReplaced) {
  totals_->enter(Phase::idle, 100);
  totals_->enter(Phase::function, 110);
  totals_->note_call(1, false);
  EXPECT_EQ(totals_->read(5000).of(Phase::function), 4890);
  totals_->begin(6000);
  EXPECT_EQ(totals_->read(7000).of(Phase::function), 5890) << "until the next worker begins, and no longer";
  totals_->enter(Phase::idle, 9000);
  const TotalsNow now = totals_->read(9000);
  EXPECT_EQ(now.of(Phase::function), 5890);
  EXPECT_EQ(now.of(Phase::idle), 10);
  EXPECT_EQ(now.of(Count::calls), 0) << "the call of the lost worker has not ended";
}

}  // namespace
}  // namespace syncrun::test

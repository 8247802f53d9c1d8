// Ranks compare the collectives that they have put on their GPUs' streams. The ranks of these tests share one control
// block, and have no GPU.

#include "worker/devices/cuda/collective_plan.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <string>

#include "common/os/segment.hpp"
#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using Wait = worker::devices::cuda::CollectivePlan::Wait;

constexpr std::uint64_t kCommand = 9;
constexpr worker::devices::cuda::CollectivePlan::Clock::time_point kNow{std::chrono::hours(1)};

struct Rank {
  Rank(const protocol::ControlBlock& control, int rank) {
    attachment.rank = rank;
    attachment.world_size = control.world_size();
    attachment.place = protocol::NodePlace::alone(control.world_size());
    attachment.control = control;
    enter(kCommand);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  void enter(std::uint64_t command) const { attachment.mark(command, protocol::Phase::function); }
  /// The message of the error that check_peers() throws, or "" if it throws none.
  std::string found(worker::devices::cuda::CollectivePlan::Clock::time_point now = kNow) {
    return test::error_text([&] { plan.check_peers(now); }, ErrorKind::usage);
  }

  worker::process::Attachment attachment;
  worker::devices::cuda::CollectivePlan plan{attachment};
};

class CollectivePlans : public testing::Test {
 protected:
  CollectivePlans() : segment_(os::Segment::create(os::Segment::kSmallestReservation)) {
    const protocol::ControlBlock control(segment_.base(), 2);
    for (int rank = 0; rank < 2; ++rank) ranks_.emplace_back(control, rank);
  }
  Rank& a() { return ranks_[0]; }
  Rank& b() { return ranks_[1]; }

  /// The error of rank 0, with how many collectives each of the two has called.
  static std::string disagreement(int of_a, int of_b) {
    return "ranks disagree in a collective: rank 0 and rank 1 have called different ones, or in another order, or of "
           "other lengths (in this call, rank 0 has called " +
           std::to_string(of_a) + " so far, and rank 1 has called " + std::to_string(of_b) + ")";
  }
  os::Segment segment_;
  std::deque<Rank> ranks_;
};

TEST_F(CollectivePlans, AgreeWhereTheSameWasCalledInTheSameOrder) {
  for (Rank* rank : {&a(), &b()}) {
    rank->plan.add({1, 100});
    rank->plan.add({2, 200});
    rank->plan.publish_waiting(Wait::last);
  }
  EXPECT_EQ(a().found(), "");
  EXPECT_EQ(b().found(), "");
}

TEST_F(CollectivePlans, DisagreeWhereTheOrderIsAnother) {
  a().plan.add({1, 100});
  a().plan.add({2, 200});
  b().plan.add({2, 200});
  b().plan.add({1, 100});
  a().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), "") << "the peer has said nothing yet";
  b().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), disagreement(2, 2));
  EXPECT_NE(b().found(), "");
}

TEST_F(CollectivePlans, WaitForARankThatMayStillCallTheRest) {
  a().plan.add({1, 100});
  a().plan.add({2, 200});
  b().plan.add({1, 100});
  a().plan.publish_waiting(Wait::last);
  b().plan.publish_waiting(Wait::midway);
  EXPECT_EQ(a().found(), "");
  EXPECT_EQ(b().found(), "");
  b().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), disagreement(2, 1));
  EXPECT_NE(b().found(), "");
}

TEST_F(CollectivePlans, AreThoseOfOneCommand) {
  a().plan.add({1, 100});
  a().plan.publish_waiting(Wait::last);
  b().enter(kCommand + 1);
  b().plan.add({2, 200});
  b().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), "");
  a().enter(kCommand + 1);
  a().plan.add({2, 200});
  a().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), "");
}

TEST_F(CollectivePlans, TellTheReductionOfOutputsFromTheBody) {
  a().plan.publish_waiting(Wait::last);
  b().plan.begin_after_vote();
  b().plan.add({3, 300});
  b().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), "") << "it has not said yet that it is after the vote";
}

TEST_F(CollectivePlans, LetARankSetUpWhatThisOneHasNotComeTo) {
  a().plan.add({1, 100});
  b().plan.add({1, 100});
  b().plan.publish_setting_up();
  a().plan.publish_waiting(Wait::midway);
  EXPECT_EQ(a().found(), "");
  a().plan.publish_waiting(Wait::last);
  EXPECT_EQ(a().found(), disagreement(1, 1));
  b().plan.end_setting_up();
  EXPECT_EQ(a().found(), "");
}

TEST_F(CollectivePlans, GiveARankThatSetsUpAloneSomeTime) {
  a().plan.add({1, 100});
  a().plan.publish_waiting(Wait::midway);
  b().plan.publish_setting_up();
  EXPECT_EQ(a().found(kNow), "");
  EXPECT_EQ(a().found(kNow + worker::devices::cuda::CollectivePlan::kSetUpGrace / 2), "");
  EXPECT_EQ(a().found(kNow + worker::devices::cuda::CollectivePlan::kSetUpGrace), disagreement(1, 0));
}

TEST_F(CollectivePlans, GiveARankOfAnotherNodeMoreTime) {
  a().attachment.place = {0, 2, 0, 1};
  a().plan.add({1, 100});
  a().plan.publish_waiting(Wait::midway);
  b().plan.publish_setting_up();
  EXPECT_EQ(a().found(kNow), "");
  EXPECT_EQ(a().found(kNow + worker::devices::cuda::CollectivePlan::kSetUpGrace), "");
  EXPECT_EQ(a().found(kNow + worker::devices::cuda::CollectivePlan::kSetUpGraceOfNodes), disagreement(1, 0));
}

}  // namespace
}  // namespace syncrun::detail

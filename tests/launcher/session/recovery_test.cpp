// The replacement of lost workers, tested without processes: the order of its steps, and what can fail.

#include "launcher/session/recovery.hpp"

#include <gmock/gmock.h>

#include <csignal>

#include "common/os/life.hpp"
#include "launcher/process/spawn.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

class Respawn : public testing::Test {
 protected:
  Respawn() {
    calls.attach(pool.control());
    for (int rank = 0; rank < pool.world_size(); ++rank) initialise_life(pool.control().worker(rank).life);
  }

  std::uint64_t publish(CallResult* result) { return publish(result, calls.all_ranks()); }
  std::uint64_t publish(CallResult* result, const RankSet& ranks) {
    calls.next(ranks, Milliseconds(0));
    calls.next_in_flight().result = result;
    calls.next_in_flight().what = "step";
    return calls.publish();
  }
  void lose(int rank) {
    const ChildEnd end{SIGKILL, describe_status(SIGKILL)};
    pool.die(rank, end);
    failure = report.describe_loss(rank, end);
  }
  void replace(Milliseconds limit = Milliseconds(1000)) {
    recovery.replace_lost(failure, "in call 'step'", SIGKILL, limit);
  }
  Recovery::Steps steps() {
    return {.collect =
                [this](std::uint64_t id) {
                  pool.log.push_back("collect " + std::to_string(id));
                  calls.release(id, nullptr);
                },
            .free = [this](std::uint64_t offset) { pool.log.push_back("free " + std::to_string(offset)); },
            .forget_copies =
                [this](int rank) {
                  pool.log.push_back("forget copies of " + std::to_string(rank));
                  if (!value) return;
                  value->value->copies[static_cast<std::size_t>(rank)] = {};
                  EXPECT_FALSE(value->value->is_anywhere());
                },
            .await_ready =
                [this](const std::vector<int>& ranks) {
                  pool.log.push_back("await_ready " + std::to_string(ranks.size()));
                },
            .pass_on =
                [this](const std::vector<int>&, Failure& to) {
                  pool.log.emplace_back("pass on");
                  to.restored = {"weights"};
                }};
  }
  static std::string text_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      return known.what();
    }
  }
  std::string text_of_error() {
    try {
      replace(Milliseconds(50));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
      return error.what();
    }
    return "nothing was thrown";
  }

  std::shared_ptr<VariableRecord> value;  // if there is one
  FakePool pool{3};
  CallTable calls;
  LossReport report{pool, calls, {"cpu0", "cpu1", "cpu2"}};
  Recovery recovery{pool, calls, report, steps(), 2};
  Failure failure;
};

TEST_F(Respawn, BuriesTheLostFailsTheCallsAndThenStartsAnew) {
  CallResult result;
  const auto id = publish(&result);
  calls.in_flight(id).temporaries = {64};
  calls.in_flight(id).writes = {"bias"};
  lose(1);
  pool.finish(0, id);
  pool.finish(2, id);
  replace();
  EXPECT_THAT(pool.log, ElementsAre("reap 1", "free 64", "forget copies of 1", "replace 1", "await_ready 1", "watch 1",
                                    "pass on"));
  EXPECT_TRUE(calls.is_idle());
  EXPECT_FALSE(recovery.is_running());
  EXPECT_EQ(pool.control().header().replacements.load(), 1U);
  for (const auto& failed : pool.control().header().failed_comms) {
    EXPECT_EQ(failed.load(), id) << "communicators had a dead rank in them";
  }
  ASSERT_TRUE(result.finished);
  ASSERT_NE(result.error, nullptr);
  EXPECT_THAT(text_of(result.error), HasSubstr("rank 1 (cpu1, pid 101) was lost in call 'step': "));
  EXPECT_THAT(text_of(result.error), HasSubstr("\n  rank 1 (cpu1, pid 201) is new"));
  EXPECT_THAT(text_of(result.error), HasSubstr("\n  restored from a peer: 'weights'"));
  EXPECT_THAT(text_of(result.error), HasSubstr("\n  undefined: 'bias'"));
}

TEST_F(Respawn, TakesNoCopyForTheHomeOfAValueThatHasNotArrived) {
  value = std::make_shared<VariableRecord>();
  value->value = std::make_unique<ValueState>(3);
  value->value->home = 1;
  value->value->copies[1].is_valid = true;
  CallResult result;
  const auto move = publish(&result, RankSet::only(2));
  calls.in_flight(move).arguments[0] = value;
  calls.in_flight(move).arguments_count = 1;
  calls.in_flight(move).brings_to = Destination::rank(2);
  value->value->copies[2] = {.is_valid = true, .written = move, .brought = move, .used = move, .readers = {}};
  pool.fail(2, move, 0, "a worker was lost");
  pool.finish_all(move);
  lose(1);
  replace();
  EXPECT_THAT(text_of(value->value->failure), HasSubstr("rank 1 (cpu1, pid 101) was lost"));
}

TEST_F(Respawn, RefusesMoreThanTheLimitBeforeItWaits) {
  for (int times = 0; times < 2; ++times) {
    lose(1);
    replace();
  }
  publish(nullptr);  // no rank finishes this call
  lose(1);
  pool.log.clear();
  EXPECT_THAT(text_of_error(), HasSubstr("could not be replaced: that would be more than 2 in this session"));
  EXPECT_THAT(pool.log, ElementsAre());
}

TEST_F(Respawn, EndsWhereTheLostCannotBeKilled) {
  lose(1);
  pool.immortal = {1};
  EXPECT_THAT(text_of_error(), HasSubstr("could not be replaced: rank 1 (cpu1, pid 101) cannot be killed"));
}

}  // namespace
}  // namespace syncrun::test

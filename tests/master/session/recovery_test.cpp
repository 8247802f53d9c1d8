// The replacement of lost workers, tested without processes: the order of its steps, and what can fail.

#include "master/session/recovery.hpp"

#include <gmock/gmock.h>

#include "common/protocol/variable_entry.hpp"
#include "master/session/session_core.hpp"
#include "tests/common/error_text.hpp"
#include "tests/master/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Respawn : public testing::Test {
 protected:
  Respawn() {
    pool->log.clear();
    pool->successors_are_ready = true;
  }

  std::uint64_t publish(CallResult* result = nullptr) { return publish(result, session.all_ranks()); }
  std::uint64_t publish(CallResult* result, const protocol::RankSet& ranks) {
    commands.next_command(ranks).begin<protocol::UnpinPayload>();
    calls.next_in_flight().result = result;
    calls.next_in_flight().what = "step";
    return commands.publish();
  }
  /// The worker dies in a call of all ranks, and the master waits for the call.
  void lose(int rank) {
    const auto id = publish();
    for (const int other : session.all_ranks()) {
      if (other != rank) pool->finish(other, id);
    }
    pool->die(rank, FakePool::killed());
    commands.await(id);
  }
  static std::string text_of(const std::exception_ptr& error) {
    return error_text([&] { std::rethrow_exception(error); }, ErrorKind::worker_lost);
  }

  FakePool* pool = nullptr;
  master::session::SessionCore session{SessionOptions{.devices = "cpu0,cpu1,cpu2",
                                                      .grace = std::chrono::milliseconds(10),
                                                      .on_worker_lost = OnWorkerLost::respawn,
                                                      .max_respawns = 2,
                                                      .log_level = LogLevel::error},
                                       [this](const master::settings::Settings& settings) {
                                         auto made =
                                             std::make_unique<FakePool>(static_cast<int>(settings.devices.size()));
                                         pool = made.get();
                                         return made;
                                       }};
  master::dispatch::CommandDispatcher& commands = session.commands();
  master::calls::CommandTable& calls = session.calls();
};

TEST_F(Respawn, BuriesTheLostFailsTheCallsAndThenStartsAnew) {
  const auto used = session.heap().used_bytes();
  CallResult result;
  const auto id = publish(&result);
  calls.in_flight(id).temporaries = {session.heap().allocate(64, os::SharedHeap::Contents::any, "rows")};
  calls.in_flight(id).writes = {"bias"};
  pool->set_phase(1, id, protocol::Phase::function);
  pool->die(1, FakePool::killed());
  pool->finish(0, id);
  pool->finish(2, id);
  commands.await(id);
  EXPECT_THAT(pool->log, ElementsAre("reap 1", "replace 1", "watch 1"));
  EXPECT_EQ(session.heap().used_bytes(), used);
  EXPECT_TRUE(calls.is_idle());
  EXPECT_TRUE(session.is_open());
  EXPECT_EQ(session.control().header().replacements.load(), 1U);
  for (const auto& failed : session.control().header().failed_comms) {
    EXPECT_EQ(failed.load(), id) << "communicators had a dead rank in them";
  }
  ASSERT_TRUE(result.finished);
  ASSERT_NE(result.error, nullptr);
  EXPECT_THAT(text_of(result.error), HasSubstr("rank 1 (cpu1, pid 101) was lost in call 'step'"));
  EXPECT_THAT(text_of(result.error), HasSubstr("\n  rank 1 (cpu1, pid 201) is new"));
  EXPECT_THAT(text_of(result.error), HasSubstr("\n  undefined: 'bias'"));
}

TEST_F(Respawn, TakesNoCopyForTheHomeOfAValueThatHasNotArrived) {
  const auto value = std::make_shared<master::records::VariableRecord>();
  value->entry =
      session.heap().allocate(protocol::VariableEntry::bytes(3), os::SharedHeap::Contents::zero, "a variable");
  value->value = std::make_unique<master::records::ValueState>(3);
  value->value->home = 1;
  value->value->copies[1].is_valid = true;
  session.registry().add(value);
  CallResult result;
  const auto move = publish(&result, protocol::RankSet::only(2));
  calls.in_flight(move).arguments[0].variable = value;
  calls.in_flight(move).arguments_count = 1;
  calls.in_flight(move).brings_to = master::records::Destination::rank(2);
  value->value->copies[2] = {.is_valid = true, .written = move, .brought = move, .used = move, .readers = {}};
  pool->fail(2, move, 0, "a worker was lost");
  pool->finish_all(move);
  pool->die(1, FakePool::killed());
  commands.await(move);
  EXPECT_THAT(text_of(value->value->failure), HasSubstr("rank 1 (cpu1, pid 101) was lost"));
}

TEST_F(Respawn, RefusesMoreThanTheLimitBeforeItWaits) {
  for (int times = 0; times < 2; ++times) lose(1);
  const auto id = publish();  // no rank finishes this call
  pool->die(1, FakePool::killed());
  pool->log.clear();
  EXPECT_THAT(error_text([&] { commands.await(id); }, ErrorKind::worker_lost),
              HasSubstr("could not be replaced: that would be more than 2 in this session"));
  EXPECT_THAT(pool->log, Not(Contains("reap 1")));
}

TEST_F(Respawn, EndsWhereTheLostCannotBeKilled) {
  pool->immortal = {1};
  EXPECT_THAT(error_text([&] { lose(1); }, ErrorKind::worker_lost),
              HasSubstr("could not be replaced: rank 1 (cpu1, pid 101) cannot be killed"));
}

}  // namespace
}  // namespace syncrun::test

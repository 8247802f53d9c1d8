// A whole session on workers without processes: the order of its steps when it opens, fails and ends.

#include "launcher/session/session_core.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common/protocol/variable_entry.hpp"
#include "launcher/session/session_start.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/device.hpp"
#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::Contains;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

class SessionOnAFakePool : public testing::Test {
 protected:
  SessionCore::MakePool maker() {
    return [this](const Settings& settings) {
      auto made = std::make_unique<FakePool>(static_cast<int>(settings.devices.size()));
      made->start_state = start_state;
      // The ranks have finished all commands in advance, so no call waits.
      if (workers_answer) made->finish_all(std::uint64_t{1} << 20U);
      made->last_log = &last_log;
      pool = made.get();
      return made;
    };
  }
  template <class Action>
  static std::string text_of(Action&& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  const SessionOptions options{
      .devices = "cpu0,cpu1", .grace = std::chrono::milliseconds(10), .log_level = LogLevel::error};
  StartState start_state = StartState::ready;
  bool workers_answer = true;
  FakePool* pool = nullptr;
  std::vector<std::string> last_log;  // the log of a pool that has been destroyed
};

TEST_F(SessionOnAFakePool, OpensRunsCommandsAndCloses) {
  SessionCore session(options, maker());
  EXPECT_TRUE(session.is_open());
  EXPECT_THAT(session.devices(), ElementsAre("cpu0", "cpu1"));
  CommandRunner& commands = session.commands();
  EXPECT_NO_THROW(commands.run_system(commands.settle(session.all_ranks()), "unpin", "",
                                      [](CommandHead& command, InFlight&) { command.begin<UnpinPayload>(); }));
  for (const int rank : session.all_ranks()) pool->end_by_itself(rank);
  session.close();
  EXPECT_THAT(pool->log, ElementsAre("start", "watch", "expect ends", "end"));
  EXPECT_EQ(text_of([&] { session.check_open(); }), "the session was closed");
}

TEST_F(SessionOnAFakePool, IsTheOnlyOneOfItsProcessUntilItIsOver) {
  {
    const SessionCore first(options, maker());
    EXPECT_THAT(text_of([&] { const SessionCore second(options, maker()); }), HasSubstr("there is a live session"));
  }
  EXPECT_NO_THROW(const SessionCore third(options, maker()));
}

TEST_F(SessionOnAFakePool, EndsItsWorkersWhereOneDoesNotStartAndLeavesRoomForAnother) {
  start_state = StartState::failed;
  EXPECT_THAT(text_of([&] { const SessionCore session(options, maker()); }), HasSubstr("was lost while starting"));
  EXPECT_THAT(last_log, ElementsAre("start")) << "it was never watched";
  start_state = StartState::ready;
  EXPECT_NO_THROW(const SessionCore session(options, maker()));
}

TEST_F(SessionOnAFakePool, IsOverWhenAWorkerIsLostAndSaysSoFromThenOn) {
  workers_answer = false;
  SessionCore session(options, maker());
  session.commands().next_command(session.all_ranks()).begin<UnpinPayload>();
  const auto id = session.commands().publish();
  pool->die(1, FakePool::killed());
  EXPECT_THAT(text_of([&] { session.commands().await(id); }), HasSubstr("rank 1 (cpu1, pid 101) was lost"));
  EXPECT_FALSE(session.is_open());
  EXPECT_THAT(pool->log, Contains("end"));
  EXPECT_THAT(text_of([&] { const SessionCore::Entry entry(session); }),
              HasSubstr("the session is over: rank 1 (cpu1, pid 101) was lost"));
}

TEST_F(SessionOnAFakePool, DoesNotCollectWhatASurvivorGaveUpBeforeItSeesTheLoss) {
  workers_answer = false;
  SessionCore session(options, maker());
  CommandRunner& commands = session.commands();
  CallResult result;
  commands.next_command(RankSet::only(0)).begin<UnpinPayload>();
  commands.calls().next_in_flight().result = &result;
  const auto id = commands.publish();
  pool->fail(0, id, 0, "a worker was lost");
  pool->finish_all(id);
  pool->die(1, FakePool::killed());
  commands.collect_complete();
  EXPECT_FALSE(result.finished);
  EXPECT_THAT(text_of([&] { commands.await(id); }), HasSubstr("rank 1 (cpu1, pid 101) was lost"));
}

TEST_F(SessionOnAFakePool, SaysWhoHadToBeKilledWhenItWasClosed) {
  SessionCore session(options, maker());
  pool->end_by_itself(0);
  EXPECT_THAT(text_of([&] { session.close(); }), HasSubstr("rank 1 (cpu1, pid 101) was lost while closing"));
  EXPECT_THAT(pool->log, Contains("kill all"));
}

TEST_F(SessionOnAFakePool, FreesTheVariablesOfIdleRanksWhileAnotherRankIsBusy) {
  workers_answer = false;
  SessionCore session(options, maker());
  for (std::size_t i = 0; i < kInboxSize; ++i) {
    session.commands().next_command(RankSet::only(1)).begin<UnpinPayload>();
    session.commands().publish();
  }
  for (int i = 0; i < 32; ++i) {
    const auto entry = session.heap().allocate(VariableEntry::bytes(2), SharedHeap::Contents::zero, "a variable");
    session.registry().free_later({.entry = entry, .host = 0, .ranks = RankSet::only(0)});
  }
  session.release_memory();
  const Command& command = session.calls().command(session.calls().last_published());
  EXPECT_EQ(command.kind, CommandKind::free);
  EXPECT_EQ(command.ranks, RankSet::only(0));
  session.abandon();
}

TEST_F(SessionOnAFakePool, FreesAVariableWithoutCopiesWithoutACommand) {
  SessionCore session(options, maker());
  const auto used = session.heap().used_bytes();
  const auto entry = session.heap().allocate(VariableEntry::bytes(2), SharedHeap::Contents::zero, "a variable");
  session.registry().free_later({.entry = entry, .host = 0, .ranks = RankSet()});
  session.release_memory();
  EXPECT_EQ(session.heap().used_bytes(), used);
  EXPECT_EQ(session.calls().last_published(), 0U);
}

TEST_F(SessionOnAFakePool, ChecksTheMemoryForAValueBeforeAWorkerMoves) {
  const auto session = std::make_shared<SessionCore>(options, maker());
  const std::vector<std::int64_t> extents{4};
  const std::vector<float> values(4);
  const auto x = make_value(session, DType::float32, extents, values.data(), nullptr, "x");
  x->value->extents[0] = std::int64_t{1} << 55U;
  const auto before = session->calls().last_published();
  const Device device(1, "cpu1", "cpu1", "cpu1");
  EXPECT_THAT(
      text_of([&] { bring_value(x, device); }),
      ContainsRegex("the copy of value 'x' on rank 1 requires 144115188075855872 bytes of shared memory; [0-9]+ "
                    "bytes are available .*, and 0 bytes of copies that are valid elsewhere can be dropped"));
  EXPECT_EQ(session->calls().last_published(), before);
  session->abandon();
}

TEST_F(SessionOnAFakePool, LeavesNothingOfACommandThatCannotBeFilledIn) {
  SessionCore session(options, maker());
  const auto used = session.heap().used_bytes();
  CommandRunner& commands = session.commands();
  const auto fill = [&](CommandHead&, InFlight& in_flight) {
    in_flight.temporaries.push_back(session.heap().allocate(100, SharedHeap::Contents::any, "values"));
    throw Error(ErrorKind::usage, "no such row");
  };
  EXPECT_EQ(text_of([&] { commands.run_system(commands.settle(session.all_ranks()), "set", "weights", fill); }),
            "no such row");
  EXPECT_EQ(session.heap().used_bytes(), used);
  EXPECT_TRUE(session.calls().is_idle());
}

TEST_F(SessionOnAFakePool, IsUsedByOneThreadAtATime) {
  SessionCore session(options, maker());
  const SessionCore::Entry entry(session);
  EXPECT_THAT(text_of([&] { const SessionCore::Entry other(session); }), HasSubstr("one thread at a time"));
  const auto offset = session.heap().allocate(100, SharedHeap::Contents::any, "an array");
  session.give_up(offset, SharedHeap::Giveback::now);
  EXPECT_NE(session.heap().used_bytes(), 0U) << "somebody is inside: it is freed at the next entry";
  session.registry().run_releases();
  EXPECT_EQ(session.heap().used_bytes(), 0U);
}

TEST_F(SessionOnAFakePool, LetsACallWaitForAThreadThatFreesTheMemoryOfAHandle) {
  SessionCore session(options, maker());
  std::atomic<bool> is_freeing = false;
  std::atomic<bool> may_end = false;
  std::thread other([&] {
    session.release([&] {
      is_freeing = true;
      while (!may_end) std::this_thread::yield();
    });
  });
  while (!is_freeing) std::this_thread::yield();
  std::thread clock([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    may_end = true;
  });
  {
    const SessionCore::Entry entry(session);
    EXPECT_TRUE(may_end) << "both were inside";
  }
  other.join();
  clock.join();
}

/// Keeps the lines that it gets.
class KeptLog final : public Logger {
 public:
  void write(LogLevel level, std::string_view text) override {
    lines.push_back(std::string(to_string(level)) + ": " + std::string(text));
  }
  std::vector<std::string> lines;
};

TEST(Announcement, HasEachNameWithTheHardwareThatTheWorkerHasFound) {
  FakePool pool(2);
  Settings settings;
  settings.devices = {{DeviceKind::cuda, 4}, {DeviceKind::cuda, 2}};
  settings.device_names = {{"dev0", 1}, {"main", 0}, {"dev1", 1}};
  put_text(pool.control().worker(0).hardware, "NVIDIA T4, 16 GB");
  put_text(pool.control().worker(1).hardware, "NVIDIA H100 PCIe, 85 GB");
  KeptLog log;
  announce(settings, pool.control(), log);
  EXPECT_THAT(log.lines,
              ElementsAre("info: rank 0 on cuda4, rank 1 on cuda2", "info: dev0 is cuda2: NVIDIA H100 PCIe, 85 GB",
                          "info: main is cuda4: NVIDIA T4, 16 GB", "info: dev1 is cuda2: NVIDIA H100 PCIe, 85 GB"));
}

}  // namespace
}  // namespace syncrun::test

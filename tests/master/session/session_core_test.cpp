// A whole session on workers without processes: races that real workers cannot be made to run into, and memory.

#include "master/session/session_core.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common/protocol/variable_entry.hpp"
#include "master/session/session_start.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/device.hpp"
#include "tests/common/error_text.hpp"
#include "tests/master/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

class SessionOnAFakePool : public testing::Test {
 protected:
  master::session::SessionCore::MakePool maker() {
    return [this](const master::settings::Settings& settings) {
      auto made = std::make_unique<FakePool>(static_cast<int>(settings.devices.size()));
      // The ranks have finished all commands in advance, so no call waits.
      if (workers_answer) made->finish_all(std::uint64_t{1} << 20U);
      pool = made.get();
      return made;
    };
  }

  const SessionOptions options{
      .devices = "cpu0,cpu1", .grace = std::chrono::milliseconds(10), .log_level = LogLevel::error};
  bool workers_answer = true;
  FakePool* pool = nullptr;
};

TEST_F(SessionOnAFakePool, DoesNotCollectWhatASurvivorGaveUpBeforeItSeesTheLoss) {
  workers_answer = false;
  master::session::SessionCore session(options, maker());
  master::dispatch::CommandDispatcher& commands = session.commands();
  CallResult result;
  commands.next_command(protocol::RankSet::only(0)).begin<protocol::UnpinPayload>();
  commands.calls().next_in_flight().result = &result;
  const auto id = commands.publish();
  pool->fail(0, id, 0, "a worker was lost");
  pool->finish_all(id);
  pool->die(1, FakePool::killed());
  commands.collect_complete();
  EXPECT_FALSE(result.finished);
  EXPECT_THAT(error_text([&] { commands.await(id); }), HasSubstr("rank 1 (cpu1, pid 101) was lost"));
}

TEST_F(SessionOnAFakePool, FreesTheVariablesOfIdleRanksWhileAnotherRankIsBusy) {
  workers_answer = false;
  master::session::SessionCore session(options, maker());
  for (std::size_t i = 0; i < protocol::kInboxSize; ++i) {
    session.commands().next_command(protocol::RankSet::only(1)).begin<protocol::UnpinPayload>();
    session.commands().publish();
  }
  for (int i = 0; i < 32; ++i) {
    const auto entry =
        session.heap().allocate(protocol::VariableEntry::bytes(2), os::SharedHeap::Contents::zero, "a variable");
    session.registry().free_later({.entry = entry, .host = 0, .ranks = protocol::RankSet::only(0)});
  }
  session.release_memory();
  const protocol::Command& command = session.calls().command(session.calls().last_published());
  EXPECT_EQ(command.kind, protocol::CommandKind::free);
  EXPECT_EQ(command.ranks, protocol::RankSet::only(0));
  session.abandon();
}

TEST_F(SessionOnAFakePool, FreesAVariableWithoutCopiesWithoutACommand) {
  master::session::SessionCore session(options, maker());
  const auto used = session.heap().used_bytes();
  const auto entry =
      session.heap().allocate(protocol::VariableEntry::bytes(2), os::SharedHeap::Contents::zero, "a variable");
  session.registry().free_later({.entry = entry, .host = 0, .ranks = protocol::RankSet()});
  session.release_memory();
  EXPECT_EQ(session.heap().used_bytes(), used);
  EXPECT_EQ(session.calls().last_published(), 0U);
}

TEST_F(SessionOnAFakePool, ChecksTheMemoryForAValueBeforeAWorkerMoves) {
  const auto session = std::make_shared<master::session::SessionCore>(options, maker());
  const std::vector<std::int64_t> extents{4};
  const std::vector<float> values(4);
  const auto x = make_value(session, DType::float32, extents, values.data(), nullptr, "x");
  x->value->extents[0] = std::int64_t{1} << 55U;
  const auto before = session->calls().last_published();
  const Device device(1, "cpu1", "cpu1", "cpu1");
  EXPECT_THAT(
      error_text([&] { bring_value(x, device); }),
      ContainsRegex("the copy of value 'x' on rank 1 requires 144115188075855872 bytes of shared memory; [0-9]+ "
                    "bytes are available .*, and 0 bytes of copies that are valid elsewhere can be dropped"));
  EXPECT_EQ(session->calls().last_published(), before);
  session->abandon();
}

TEST_F(SessionOnAFakePool, LeavesNothingOfACommandThatCannotBeFilledIn) {
  master::session::SessionCore session(options, maker());
  const auto used = session.heap().used_bytes();
  master::dispatch::CommandDispatcher& commands = session.commands();
  const auto fill = [&](protocol::CommandHead&, master::calls::InFlight& in_flight) {
    in_flight.temporaries.push_back(session.heap().allocate(100, os::SharedHeap::Contents::any, "values"));
    throw Error(ErrorKind::usage, "no such row");
  };
  EXPECT_EQ(error_text([&] { commands.run_system(commands.settle(session.all_ranks()), "set", "weights", fill); }),
            "no such row");
  EXPECT_EQ(session.heap().used_bytes(), used);
  EXPECT_TRUE(session.calls().is_idle());
}

/// It may hold the session itself. Then neither would ever be freed.
TEST_F(SessionOnAFakePool, DropsWhatAHandleLeavesAfterTheEnd) {
  master::session::SessionCore session(options, maker());
  const auto held = std::make_shared<int>();
  session.registry().release_later([held] {});
  session.abandon();
  session.registry().release_later([held] {});
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(SessionOnAFakePool, IsUsedByOneThreadAtATime) {
  master::session::SessionCore session(options, maker());
  const master::session::SessionCore::Entry entry(session);
  EXPECT_THAT(error_text([&] { const master::session::SessionCore::Entry other(session); }),
              HasSubstr("one thread at a time"));
  const auto offset = session.heap().allocate(100, os::SharedHeap::Contents::any, "an array");
  session.give_up(offset, os::SharedHeap::Giveback::now);
  EXPECT_NE(session.heap().used_bytes(), 0U) << "somebody is inside: it is freed at the next entry";
  session.registry().run_releases();
  EXPECT_EQ(session.heap().used_bytes(), 0U);
}

TEST_F(SessionOnAFakePool, LetsACallWaitForAThreadThatFreesTheMemoryOfAHandle) {
  master::session::SessionCore session(options, maker());
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
    const master::session::SessionCore::Entry entry(session);
    EXPECT_TRUE(may_end) << "both were inside";
  }
  other.join();
  clock.join();
}

/// Keeps the lines that it gets.
class KeptLog final : public text::Logger {
 public:
  void write(LogLevel level, std::string_view text) override {
    lines.push_back(std::string(text::to_string(level)) + ": " + std::string(text));
  }
  std::vector<std::string> lines;
};

TEST(Announcement, HasEachNameWithTheHardwareThatTheWorkerHasFound) {
  FakePool pool(2);
  master::settings::Settings settings;
  settings.devices = {{DeviceKind::cuda, 4}, {DeviceKind::cuda, 2}};
  settings.nodes = {pool.control().place()};
  settings.device_names = {{"dev0", 1}, {"main", 0}, {"dev1", 1}};
  text::put_text(pool.control().worker(0).hardware, "NVIDIA T4, 16 GB");
  text::put_text(pool.control().worker(1).hardware, "NVIDIA H100 PCIe, 85 GB");
  KeptLog log;
  master::session::announce(settings, pool.control(), log);
  EXPECT_THAT(log.lines,
              ElementsAre("info: rank 0 on cuda4, rank 1 on cuda2", "info: dev0 is cuda2: NVIDIA H100 PCIe, 85 GB",
                          "info: main is cuda4: NVIDIA T4, 16 GB", "info: dev1 is cuda2: NVIDIA H100 PCIe, 85 GB"));
}

}  // namespace
}  // namespace syncrun::test

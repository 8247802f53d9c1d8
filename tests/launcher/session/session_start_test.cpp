// The start of a session, tested without processes: it lasts until all workers are ready or one has failed.

#include "launcher/session/session_start.hpp"

#include <gmock/gmock.h>

#include "tests/launcher/pool/fake_pool.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::HasSubstr;

class Start : public testing::Test {
 protected:
  Start() { calls.attach(pool.control()); }
  WorkerSlot& worker(int rank) { return pool.control().worker(rank); }
  /// The error of a start.
  Error failure(Milliseconds limit = Milliseconds(10000)) {
    try {
      await_ready(pool, report, limit);
    } catch (const Error& error) {
      return error;
    }
    return {ErrorKind::usage, "nothing was thrown"};
  }

  FakePool pool{2};
  CallTable calls;
  LossReport report{pool, calls, {"cpu0", "cpu1"}};
};

TEST_F(Start, IsOverOnceAllWorkersAreReady) {
  pool.start();
  EXPECT_NO_THROW(await_ready(pool, report, Milliseconds(10000)));
}

TEST_F(Start, ThrowsWhatAWorkerFailedWith) {
  worker(0).start.store(StartState::ready);
  put_text(worker(1).reason, "no such device");
  worker(1).start.store(StartState::failed);
  pool.end_by_itself(1, 1 << 8);
  EXPECT_THAT(failure().what(), HasSubstr("rank 1 (cpu1, pid 101) was lost while starting"));
  EXPECT_THAT(failure().what(), HasSubstr("no such device"));
}

TEST_F(Start, ThrowsALossBeforeItsTimeIsOver) {
  worker(0).start.store(StartState::ready);
  pool.die(1, FakePool::killed());
  const Error error = failure();
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.failure().rank, 1);
}

TEST_F(Start, SaysThatNothingIsKnownOfTheWorkersRatherThanBlamingOne) {
  pool.die(1, FakePool::killed());
  pool.watch_error = Error(ErrorKind::system, "the descriptors were closed");
  EXPECT_STREQ(failure().what(), "the descriptors were closed");
}

TEST_F(Start, ThrowsATimeoutThatNamesWhoIsNotReady) {
  worker(0).start.store(StartState::ready);
  const Error error = failure(Milliseconds(20));
  EXPECT_EQ(error.kind(), ErrorKind::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 (cpu1, pid 101)"));
  EXPECT_THAT(error.what(), HasSubstr("did not start within 20 ms"));
}

/// Keeps the lines that it gets.
class KeptLog final : public Logger {
 public:
  void write(LogLevel level, std::string_view text) override {
    lines.push_back(std::string(to_string(level)) + ": " + std::string(text));
  }
  std::vector<std::string> lines;
};

TEST_F(Start, AnnouncesRanksAndDevices) {
  Settings settings;
  settings.devices = {{DeviceKind::cpu, 4}, {DeviceKind::cpu, 2}};
  KeptLog log;
  announce(settings, pool.control(), log);
  EXPECT_THAT(log.lines, testing::ElementsAre("info: rank 0 on cpu4, rank 1 on cpu2"));
}

TEST_F(Start, AnnouncesEachNameWithTheHardwareThatTheWorkerHasFound) {
  Settings settings;
  settings.devices = {{DeviceKind::cuda, 4}, {DeviceKind::cuda, 2}};
  settings.device_names = {{"dev0", 1}, {"main", 0}, {"dev1", 1}};
  put_text(worker(0).hardware, "NVIDIA T4, 16 GB");
  put_text(worker(1).hardware, "NVIDIA H100 PCIe, 85 GB");
  KeptLog log;
  announce(settings, pool.control(), log);
  EXPECT_THAT(log.lines, testing::ElementsAre(
                             "info: rank 0 on cuda4, rank 1 on cuda2", "info: dev0 is cuda2: NVIDIA H100 PCIe, 85 GB",
                             "info: main is cuda4: NVIDIA T4, 16 GB", "info: dev1 is cuda2: NVIDIA H100 PCIe, 85 GB"));
}

TEST_F(Start, MakesAProfileOnlyIfOneIsWanted) {
  ControlHeader& header = pool.control().header();
  SharedHeap heap(pool.segment(), header.heap_offset, header.heap_bytes);
  Settings settings;
  settings.devices.resize(2);
  EXPECT_EQ(begin_profile(settings, header, {pool.segment(), heap}), nullptr);
  EXPECT_EQ(header.timelines_offset, 0U) << "workers keep no times";
  settings.profile = "-";
  EXPECT_NE(begin_profile(settings, header, {pool.segment(), heap}), nullptr);
  EXPECT_GE(heap.size_of(header.timelines_offset), 2 * sizeof(Timeline));
}

}  // namespace
}  // namespace syncrun::test

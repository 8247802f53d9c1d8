// A session in which a rank is lost while others, of which one is a GPU, are about to commit the updates of a call.

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/mixed/mixed_bodies.hpp"
#include "tests/support/temporary_folder.hpp"

namespace mixed_test {
namespace {

using testing::Contains;

constexpr const char* kFolder = "MIXED_TEST_FOLDER";

void await_file(const std::filesystem::path& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// As add_sum_on_cpu, but rank 0 waits for the test.
void add_sum_late_on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> v) {
  if (worker.rank() == 0) {
    write_text(std::filesystem::path(std::getenv(kFolder)) / "reached", "");
    await_file(std::filesystem::path(std::getenv(kFolder)) / "go on");
  }
  add_sum_on_cpu(worker, x, v);
}

/// The error of a call of which a rank was lost.
sr::Error error_of(sr::Future<void>& future) {
  try {
    future.get();
  } catch (const sr::Error& error) {
    return error;
  }
  return {sr::ErrorKind::usage, "nothing was thrown"};
}

TEST(MixedVotes, OfALostRankLetTheOthersCommit) {
  if (gpus() < 1) GTEST_SKIP() << "1 GPU wanted, none present";
  const TemporaryFolder folder;
  ::setenv(kFolder, folder.path().c_str(), 1);
  sr::SessionOptions options;
  options.devices = "cpu0,cuda0,cpu1";
  options.timeout = std::chrono::seconds(60);
  options.on_worker_lost = sr::OnWorkerLost::respawn;
  sr::Session session(options);
  auto v = session.shared<float, 1>("v");
  const auto x = session.data(std::vector<float>(12, 1));
  const auto add = session.function(add_sum_late_on_cpu, add_sum_on_gpu);
  for (int attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 10) << "the rank was never lost after its vote";
    for (const char* file : {"reached", "go on"}) std::filesystem::remove(folder / file);
    v.broadcast(std::vector<float>{10, 20});
    auto future = add.async(x, v);
    await_file(folder / "reached");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the others have voted
    ::kill(session.worker_pids().back(), SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the others know of the loss
    write_text(folder / "go on", "");
    const sr::Error error = error_of(future);
    ASSERT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    if (error.failure().phase != "vote") continue;  // this machine was busy
    EXPECT_THAT(error.failure().undefined, Contains("v")) << error.what();
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(v.get(rank).to_vector(), (std::vector<float>{14, 24})) << rank;
    break;
  }
  session.close();
}

}  // namespace
}  // namespace mixed_test

// A worker dies while a Value moves between two GPUs: the source, the destination, or a rank that takes no part. Rank 0
// is the source and rank 1 the destination. Rank 2 is a CPU device, which takes no part. tests/fault/value_fault_test.cpp
// has the deaths while a move waits for its source.

#include <gmock/gmock.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/gpu/on_gpus.hpp"
#include "tests/gpu/value_bodies.hpp"

namespace gpu_test {
namespace {

using std::chrono::microseconds;

enum class Victim : std::uint8_t { source, destination, uninvolved };
constexpr int rank_of(Victim victim) { return static_cast<int>(victim); }

class MovesBetweenGpus : public testing::TestWithParam<Victim> {
 protected:
  void SetUp() override {
    if (gpus_present() < 2) GTEST_SKIP() << "two GPUs wanted, " << gpus_present() << " present";
  }
  static sr::SessionOptions options() {
    sr::SessionOptions options;
    options.devices = "cuda0,cuda1,cpu0";
    options.timeout = std::chrono::seconds(20);
    options.on_worker_lost = sr::OnWorkerLost::respawn;
    return options;
  }
  static void kill_victim_after(microseconds delay, sr::Session& session) {
    std::this_thread::sleep_for(delay);
    ASSERT_EQ(::kill(session.worker_pids()[static_cast<std::size_t>(rank_of(GetParam()))], SIGKILL), 0);
  }
  static sr::Value<float, 1> three_ones(sr::Session& session) {
    return session.value(std::vector<float>(3, 1.0F), sr::Shape{3}, session.device(0));
  }
  static void expect_that_values_move(sr::Session& session) {
    const auto twice = session.function(kept_twice);
    EXPECT_EQ(twice.on(session.device(1))(twice.on(session.device(0))(three_ones(session))).get()[2], 4.0F);
    EXPECT_EQ(twice.on(session.device(0))(twice.on(session.device(1))(three_ones(session))).get()[2], 4.0F);
  }
};
std::string name_of_victim(const testing::TestParamInfo<Victim>& victim) {
  constexpr std::array kNames{"Source", "Destination", "Uninvolved"};
  return kNames[static_cast<std::size_t>(victim.param)];
}
INSTANTIATE_TEST_SUITE_P(OfAValue, MovesBetweenGpus,
                         testing::Values(Victim::source, Victim::destination, Victim::uninvolved), name_of_victim);

TEST_P(MovesBetweenGpus, OfManyBytesEndWhenAWorkerDies) {
  constexpr std::int64_t kElements = std::int64_t{1} << 30U;  // 4 GiB: the copy takes more than 10 ms
  for (const auto delay : {microseconds(0), microseconds(2000), microseconds(6000)}) {
    sr::Session session(options());
    const auto last = session.function(last_element_of);
    const auto y = session.function(kept_filled).on(session.device(0))(kElements, 2.0F);
    session.wait();
    auto read = last.on(session.device(1)).async(y);
    kill_victim_after(delay, session);
    try {
      EXPECT_EQ(read.get()[0], 2.0F) << "the call was over before the loss, or did not notice it";
    } catch (const sr::Error& error) {
      EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    }
    // A value that only the lost rank had is gone. Other values are right.
    try {
      EXPECT_EQ(last.on(session.device(1))(y)[0], 2.0F);
    } catch (const sr::Error& error) {
      EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost) << error.what();
    }
    expect_that_values_move(session);
  }
}

}  // namespace
}  // namespace gpu_test

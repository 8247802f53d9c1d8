// A nursery with children that do nothing.

#include "master/process/nursery.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace syncrun::test {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kChildLimit = 60s;

class Sleepers final : public detail::master::process::ChildWatcher {
 public:
  int size() const override { return 2; }
  std::string describe() const override { return "the sleepers"; }
  detail::master::process::SpawnRequest request_for(int, const Ends& ends) const override {
    detail::master::process::SpawnRequest request;
    request.program = "/bin/sleep";
    request.arguments = {"sleep", "600"};
    request.standard_output = ends.output;
    request.standard_error = ends.error;
    request.leads_group = true;
    return request;
  }
  std::string tag_of(int) const override { return "[sleeper] "; }
  void on_start(int, pid_t) noexcept override {}
  void on_loss(int) noexcept override {}
};

/// If a start takes too long, the master goes on while the nursery's thread still starts children. The thread sanitizer sees
/// whether this is safe.
TEST(Nursery, TellsPidsWhileChildrenStart) {
  Sleepers sleepers;
  const detail::protocol::SupervisorLink no_supervisor;
  detail::master::process::Nursery nursery(sleepers, 1s, no_supervisor);
  std::atomic<bool> stops = false;
  std::thread reader([&] {
    while (!stops.load()) {
      EXPECT_NE(nursery.pid(0), 0);
      std::this_thread::yield();
    }
  });
  nursery.spawn_all(kChildLimit, "the test");
  const int first = nursery.pid(0);
  nursery.expect_ends();
  nursery.kill(0);
  EXPECT_EQ(nursery.await_end(0, kChildLimit), SIGKILL);
  nursery.replace(0, kChildLimit, "the test");
  stops.store(true);
  reader.join();
  EXPECT_NE(nursery.pid(0), first);
  EXPECT_FALSE(nursery.await_all_ends(1ms));
  nursery.kill_all();
  EXPECT_TRUE(nursery.await_all_ends(kChildLimit));
}

}  // namespace
}  // namespace syncrun::test

// Checks that nothing grows over many calls and many sessions. SYNCRUN_TEST_CALLS sets another number of calls, such as
// 10000000. The test then takes minutes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/hostile/surroundings.hpp"

namespace syncrun::test {
namespace {

struct Change {
  long long before = 0;
  long long after = 0;
};

/// Runs the program with one worker and returns what it prints: the values before and after, by name.
std::map<std::string, Change> changes(const std::string& name, const std::string& count) {
  Start start;
  start.in_child = [] { ::setenv("SYNCRUN_NPROC_PER_NODE", "1", 1); };
  CommandRun run({name, count}, start, LONG_PROGRAM);
  // This wait has no limit. ctest ends the test at its limit.
  siginfo_t end{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(run.pid()), &end, WEXITED | WNOWAIT), 0);
  run.expect_end(0);
  std::map<std::string, Change> changes;
  std::istringstream words(run.output());
  std::string what;
  for (Change change; words >> what >> change.before >> change.after;) {
    changes[what] = change;
    testing::Test::RecordProperty(what, std::to_string(change.before) + " -> " + std::to_string(change.after));
  }
  return changes;
}

void expect_no_growth_of_memory(const Change& kib, long long tolerance_kib) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  tolerance_kib += 300 * 1024;  // the sanitizer keeps freed memory for a while
#endif
  EXPECT_GT(kib.before, 0);
  EXPECT_LE(kib.after - kib.before, tolerance_kib) << kib.before << " KiB, then " << kib.after;
}

TEST(ManyCalls, DoNotGrowMemory) {
  const char* wanted = std::getenv("SYNCRUN_TEST_CALLS");
  const auto change = changes("calls", wanted != nullptr ? wanted : "300000");
  ASSERT_EQ(change.size(), 2);
  // One byte per call would be 300 KiB.
  expect_no_growth_of_memory(change.at("master"), 256);
  expect_no_growth_of_memory(change.at("worker"), 256);
}

TEST(AThousandSessions, LeaveNothingInTheMaster) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  const std::string count = "200";  // a session takes several times as long
#else
  const std::string count = "1000";
#endif
  auto change = changes("sessions", count);
  ASSERT_EQ(change.size(), 5);
  for (const std::string what : {"descriptors", "threads", "children"}) {
    EXPECT_EQ(change[what].after, change[what].before) << what;
  }
  EXPECT_EQ(change["children"].after, 0);
  EXPECT_LE(change["mappings"].after, change["mappings"].before + 20) << "glibc's heaps come and go";
  expect_no_growth_of_memory(change["resident"], 2048);  // would also grow if descriptors or threads were leaked
}

}  // namespace
}  // namespace syncrun::test

// Workers that die, fail or hang before they are ready.

#include <sys/resource.h>

#include <algorithm>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

struct StartCase {
  std::string action;
  std::string cause;
};
void PrintTo(const StartCase& start, std::ostream* out) { *out << start.action; }

class FailedStart : public testing::TestWithParam<std::tuple<StartCase, int>> {};

TEST_P(FailedStart, IsNamedWithRankAndCause) {
  const auto& [start, world_size] = GetParam();
  const int rank = world_size - 1;
  {
    const AtStart told(rank, start.action);
    const auto begin = Clock::now();
    const Error error = error_of([&] { Session session(workers(world_size)); });
    EXPECT_LT(Clock::now() - begin, kErrorLimit);
    EXPECT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), rank);
    EXPECT_GT(error.failure().pid, 0);
    EXPECT_EQ(error.failure().device, "cpu" + std::to_string(rank));
    EXPECT_EQ(error.failure().phase, "spawn");
    EXPECT_THAT(error.failure().cause, HasSubstr(start.cause));
    EXPECT_THAT(error.failure().last_stderr, Contains(kLastWords));
    EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(rank)));
    EXPECT_THAT(error.what(), HasSubstr("while starting (phase spawn)"));
    EXPECT_THAT(error.what(), HasSubstr(start.cause));
    EXPECT_THAT(error.what(), HasSubstr(kLastWords));
  }
  Session session(workers(world_size));
  expect_usable(session);
}

INSTANTIATE_TEST_SUITE_P(Of, FailedStart,
                         testing::Combine(testing::Values(StartCase{"static-exit-7", "exited with code 7"},
                                                          StartCase{"static-exit-0", "exited with code 0"},
                                                          StartCase{"static-kill", "killed by SIGKILL (Killed)"},
                                                          StartCase{"static-no-segment", "exited with code 1"},
                                                          StartCase{"static-segment-too-large", "exited with code 1"}),
                                          testing::Values(1, 2, 4)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param).action + "Of" + std::to_string(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(FailedStart, SaysWhatTheWorkerCouldNotDo) {
  const AtStart told(1, "static-no-segment");
  const Error error = error_of([] { Session session(workers(2)); });
  EXPECT_THAT(error.failure().last_stderr, Contains(HasSubstr("cannot start")));
  EXPECT_THAT(error.failure().last_stderr, Contains(HasSubstr("Bad file descriptor")));
}

class HangingStart : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, HangingStart, testing::Values(1, 2, 4), testing::PrintToStringParamName());

TEST_P(HangingStart, IsEndedByTheStartDeadline) {
  constexpr auto kLimit = kSlowdown * 750ms;  // until all processes exist
  const int rank = GetParam() - 1;
  const AtStart told(rank, "static-hang");
  auto options = workers(GetParam());
  options.start_timeout = kLimit;
  const auto begin = Clock::now();
  const Error error = error_of([&] { Session session(options); });
  EXPECT_EQ(error.kind(), ErrorKind::timeout) << error.what();
  EXPECT_EQ(error.failure().phase, "spawn");
  EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(rank)));
  EXPECT_THAT(error.what(), HasSubstr("is in phase spawn"));
  EXPECT_THAT(error.what(), HasSubstr("did not start within " + std::to_string(kLimit.count()) + " ms"));
  EXPECT_GE(Clock::now() - begin, kLimit);
  EXPECT_LT(Clock::now() - begin, kLimit + kErrorLimit);
}

TEST_P(HangingStart, AtAnyMomentADeathIsEitherALostStartOrALostCall) {
  const int rank = GetParam() - 1;
  for (const int delay_us : {0, 100, 300, 600, 1000, 2000, 3000, 5000, 8000, 20000}) {
    const AtStart told(rank, "after-" + std::to_string(delay_us));
    const auto begin = Clock::now();
    bool has_started = false;
    const Error error = error_of([&] {
      Session session(workers(GetParam()));
      has_started = true;
      const auto f = session.function(+[] {});
      for (;;) f();
    });
    EXPECT_LT(Clock::now() - begin, kErrorLimit);
    EXPECT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
    EXPECT_EQ(error.rank(), rank) << error.what();
    EXPECT_EQ(error.failure().cause, "killed by SIGKILL (Killed)");
    if (!has_started) {
      EXPECT_THAT(error.failure().phase, testing::AnyOf("spawn", "attach", "device", "idle"));
      EXPECT_THAT(error.what(), HasSubstr("while starting (phase " + error.failure().phase + ")"));
    }
  }
}

TEST(StartHalfWay, WithoutDescriptorsEndsWhatHasStarted) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the undefined-behaviour sanitizer checks pointers through a pipe, for which there is no descriptor";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto open_now = open_descriptors().size();
  // Every worker requires some descriptors. These numbers are enough for at most one or two of the eight.
  for (const std::size_t more : {4U, 9U, 14U, 20U}) {
    const rlimit few{open_now + more, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto begin = Clock::now();
    const Error error = error_of([] { Session session(workers(8)); });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_LT(Clock::now() - begin, kErrorLimit);
    EXPECT_EQ(error.kind(), ErrorKind::system) << error.what();
    EXPECT_EQ(error.native_code(), EMFILE) << error.what();
    EXPECT_EQ(open_descriptors().size(), open_now);
    EXPECT_FALSE(has_children());
  }
  Session session(workers(2));
  expect_usable(session);
}

TEST(StartHalfWay, WithoutALogFolderEndsWhatHasStarted) {
  auto options = workers(2);
  options.log_dir = "/proc/no/such/folder";
  const Error error = error_of([&] { Session session(options); });
  EXPECT_EQ(error.kind(), ErrorKind::system);
  EXPECT_THAT(error.what(), HasSubstr("/proc/no/such/folder"));
}

}  // namespace
}  // namespace syncrun::test

// Workers that die, fail or hang before they are ready.

#include <sys/resource.h>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

/// The matrix has the ways to die while a worker starts.
TEST(FailedStart, IsNamedWithRankAndCause) {
  constexpr int kLast = 2;
  for (const char* action : {"static-no-segment", "static-segment-too-large"}) {
    const AtStart told(kLast, action);
    const auto begin = Clock::now();
    const Error error = expect_error([&] { Session session(workers(kLast + 1)); }, ErrorKind::worker_lost,
                                     {"rank 2", "while starting (phase spawn)", "exited with code 1", kLastWords});
    EXPECT_LT(Clock::now() - begin, kErrorLimit);
    EXPECT_EQ(error.rank(), kLast);
    EXPECT_GT(error.failure().pid, 0);
    EXPECT_EQ(error.failure().device, "cpu2");
    EXPECT_EQ(error.failure().phase, "spawn");
    EXPECT_THAT(error.failure().last_stderr, Contains(kLastWords));
    EXPECT_THAT(error.failure().last_stderr, Contains(HasSubstr("cannot start")));
    if (action == std::string("static-no-segment")) {
      EXPECT_THAT(error.failure().last_stderr, Contains(HasSubstr("Bad file descriptor")));
    }
  }
  Session session(workers(kLast + 1));
  expect_usable(session);
}

class HangingStart : public testing::TestWithParam<int> {};
INSTANTIATE_WITH_WORKERS(HangingStart);

TEST_P(HangingStart, AtAnyMomentADeathIsEitherALostStartOrALostCall) {
  const int rank = GetParam() - 1;
  for (const int delay_us : {0, 100, 300, 600, 1000, 2000, 3000, 5000, 8000, 20000}) {
    const AtStart told(rank, "after-" + std::to_string(delay_us));
    const auto begin = Clock::now();
    bool has_started = false;
    const Error error = error_of([&] {
      Session session(workers(GetParam()));
      has_started = true;
      const auto f = session.function([] {});
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
  expect_error([&] { Session session(options); }, ErrorKind::system, {"/proc/no/such/folder"});
}

}  // namespace
}  // namespace syncrun::test

// Folders that are missing, read-only or belong to another user; a missing /proc, home folder or current folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Places : public testing::TestWithParam<Front> {
 protected:
  void expect_works_after(const std::function<void()>& in_child) const {
    OddRun run = run_after(in_child, GetParam(), {"add"});
    EXPECT_EQ(run.exit_code(), 0) << run.errors();
    EXPECT_EQ(run.output(), sum_of(1 << 20));
    EXPECT_TRUE(run.nothing_remains());
  }
};
INSTANTIATE_TEST_SUITE_P(Program, Places, testing::Values(Front::nothing, Front::syncrun),
                         [](const auto& test) { return to_string(test.param); });

TEST_P(Places, WithoutProcAreRefusedBeforeAnyWorkerStarts) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the address sanitizer itself requires /proc";
#endif
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount over /proc";
  OddRun run = run_after([] { mount_over("/proc"); }, GetParam(), {"add"});
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(run.last_error_line(),
              testing::StartsWith("syncrun: cannot find this program's own image at /proc/self/exe "
                                  "(is /proc mounted?)"));
  EXPECT_THAT(run.errors(), Not(HasSubstr("rank")));
  EXPECT_TRUE(run.nothing_remains());
}

TEST_P(Places, WithoutSysAreNotFelt) {
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount over /sys";
  expect_works_after([] { mount_over("/sys"); });
}

TEST_P(Places, ForTemporaryFilesAreNotNeeded) {
  expect_works_after([] { ::setenv("TMPDIR", "/there/is/no/such/folder", 1); });
  expect_works_after([] { ::unsetenv("TMPDIR"); });
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount a read-only folder";
  expect_works_after([] {
    mount_over("/var/tmp", "size=1m", MS_RDONLY);
    ::setenv("TMPDIR", "/var/tmp", 1);
  });
}

TEST_P(Places, ForAHomeAreNotNeeded) {
  expect_works_after([] {
    ::unsetenv("HOME");
    ::unsetenv("USER");
    ::unsetenv("LOGNAME");
  });
}

TEST_P(Places, ThatAreGoneCanBeTheCurrentOne) {
  expect_works_after([] {
    const TemporaryFolder folder;
    require(::chdir(folder.path().c_str()) == 0);
  });
}

TEST(CurrentFolder, ThatIsGoneTakesNoRelativeLogFolder) {
  Start start;
  start.in_child = [] {
    const TemporaryFolder folder;
    require(::chdir(folder.path().c_str()) == 0);
  };
  for (const std::string option : {"--log-dir", "--profile", "--trace"}) {
    CommandRun run({option, "there", ODD_PROGRAM, "add"}, start);
    EXPECT_EQ(run.exit_code(), 2);
    EXPECT_EQ(run.last_error_line(),
              "syncrun: " + option + ": expected a full path, since the current folder is gone; got 'there'");
  }
}

TEST_P(Places, ThatCannotBeReadCanBeTheCurrentOne) {
  if (!can_become_users()) GTEST_SKIP() << "only root can become a user who cannot read a folder";
  const TemporaryFolder folder;
  expect_works_after([&] {
    require(::chdir(folder.path().c_str()) == 0);
    require(::chmod(folder.path().c_str(), 0) == 0);
    become_user(first_stranger());
  });
}

TEST_P(Places, ForNobodyElseByTheUmaskAreNoObstacle) {
  for (const mode_t mask : {077, 0777}) expect_works_after([=] { ::umask(mask); });
}

}  // namespace
}  // namespace syncrun::test

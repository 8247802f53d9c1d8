// What a program inherits (arguments, environment, signals, session, priority) either reaches its workers or has no
// effect. So do folders that are missing, read-only or belong to another user.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kLongestArgument = 120'000;  // the kernel accepts at most 128 KiB

class Inherited : public OnBothFronts {
 protected:
  void expect_the_same(const Arguments& arguments, const std::function<void()>& in_child = {}) const {
    Arguments all{"inherit"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    OddRun run = run_after(in_child, GetParam(), all);
    EXPECT_EQ(run.exit_code(), 0) << run.errors();
    EXPECT_THAT(run.output(), HasSubstr(std::to_string(all.size() + 1) + " arguments"));
    EXPECT_THAT(run.output(), HasSubstr("; the same on 2, environment the same on 2\n"));
  }
};
INSTANTIATE_ON_BOTH_FRONTS(Inherited);

// ---- arguments and environment ----------------------------------------------------------------------------------

TEST_P(Inherited, ArgumentsOfAnyBytesReachWorkers) {
  expect_the_same({"", "a\nb", "\n", " ", "\xff\xfe\x80", "'\"\\$(x)", "--", "-n", "--devices", "=", "\x01", "", ""});
}

/// Arguments of about this many bytes in all, including pointers.
Arguments arguments_of(std::size_t bytes) {
  Arguments arguments;
  for (; bytes > kLongestArgument; bytes -= kLongestArgument) arguments.emplace_back(kLongestArgument - 9, 'x');
  arguments.emplace_back(bytes, 'y');
  return arguments;
}

std::size_t room_for_arguments() {
  std::size_t environment = 0;
  for (char** variable = environ; *variable != nullptr; ++variable) environment += std::strlen(*variable) + 9;
  return static_cast<std::size_t>(::sysconf(_SC_ARG_MAX)) - environment;
}

TEST_P(Inherited, ArgumentsOfNearlyAllThatTheSystemTakesReachWorkers) {
  expect_the_same(arguments_of(room_for_arguments() - 16'384));
}

TEST_P(Inherited, ArgumentsThatLeaveNoRoomForAWorkersVariablesAreNamed) {
  // Finds the largest size with which the program itself still starts. It tries smaller and smaller sizes, because the
  // kernel counts slightly more than room_for_arguments().
  constexpr int kCannotStart = 127;
  std::size_t bytes = room_for_arguments();
  for (int attempt = 0; attempt < 100; ++attempt, bytes -= 128) {
    Arguments all{"inherit"};
    for (auto& argument : arguments_of(bytes)) all.push_back(std::move(argument));
    OddRun run(Front::nothing, all);
    const int code = run.exit_code();
    if (code == kCannotStart) continue;
    EXPECT_EQ(code, 1);
    EXPECT_THAT(run.last_error_line(), HasSubstr("Argument list too long (a worker has the program's arguments and "
                                                 "environment, and a few variables more)"));
    EXPECT_TRUE(run.nothing_remains());
    return;
  }
  FAIL() << "it never started";
}

TEST_P(Inherited, TenThousandVariablesReachWorkers) {
  expect_the_same({}, [] {
    for (int i = 0; i < 10'000; ++i) ::setenv(("ODD_" + std::to_string(i)).c_str(), std::to_string(i * i).c_str(), 1);
  });
}

TEST_P(Inherited, VariablesOfAnyBytesAndLengthReachWorkers) {
  static std::string long_one = "ODD_LONG=" + std::string(kLongestArgument, 'v');
  static std::string nameless = "=ODD_NAMELESS";
  static std::string without_value = "ODD_WITHOUT_VALUE";
  expect_the_same({}, [] {
    ::setenv("ODD_EMPTY", "", 1);
    ::setenv("ODD_BYTES", "\xff\n\x01", 1);
    std::vector<char*> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
    for (std::string* more : {&long_one, &nameless, &without_value}) variables.push_back(more->data());
    static std::vector<char*> kept;
    kept = std::move(variables);
    kept.push_back(nullptr);
    environ = kept.data();
  });
}

TEST_P(Inherited, NoEnvironmentAtAllIsEnough) {
  expect_works_after([] {
    ::clearenv();
    ::setenv("SYNCRUN_NPROC_PER_NODE", "2", 1);
  });
}

TEST_P(Inherited, OptionsOfOneJobReachNoProgramThatTheJobStarts) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> options{{"LOG_DIR", folder.at("logs")},
                                                                 {"TEE", "all"},
                                                                 {"REDIRECT", "1"},
                                                                 {"LOG_SIZE", "100M"},
                                                                 {"ONLY_RANK", "0,1"},
                                                                 {"PROFILE", folder.at("profile.json")},
                                                                 {"TRACE", folder.at("trace")},
                                                                 {"METRICS", folder.at("metrics")},
                                                                 {"WRAP", "0:env ODD_WRAPPED=1"},
                                                                 {"WRAP_TERMINAL", "env"}};
  OddRun run = run_after(
      [&] {
        for (const auto& [name, value] : options) ::setenv(("SYNCRUN_" + name).c_str(), value.c_str(), 1);
        ::setenv("SYNCRUN_TIMEOUT", "100", 1);
      },
      GetParam(), {"nest"});
  run.expect_end(0);
  const std::string all =
      run.output() + text_of(folder / "logs" / "rank0.log") + text_of(folder / "logs" / "rank1.log");
  EXPECT_THAT(run.output(), HasSubstr("SYNCRUN_TIMEOUT=100\n"));
  EXPECT_THAT(all, HasSubstr("\nODD_WRAPPED=1\n"));
  EXPECT_THAT(text_of(folder / "logs" / "rank1.log"), HasSubstr("SYNCRUN_TIMEOUT=100\n"));
  for (const auto& [name, value] : options) EXPECT_THAT(all, Not(HasSubstr("\nSYNCRUN_" + name + "=" + value))) << name;
  EXPECT_THAT(all, HasSubstr("\nSYNCRUN_LOG_SIZE=7K\n")) << "who starts the program has set it";
  for (const char* file : {"profile.json", "trace", "metrics"}) EXPECT_NE(text_of(folder / file), "") << "it holds";
}

// ---- signals ----------------------------------------------------------------------------------------------------

void ignore_all() {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
}

void block_all() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
}

TEST_P(Inherited, IgnoredAndBlockedSignalsDoNotMatter) {
  expect_works_after([] { ::signal(SIGCHLD, SIG_IGN); });
  expect_works_after([] { ::signal(SIGPIPE, SIG_IGN); });
  expect_works_after(ignore_all);
  expect_works_after(block_all);
}

TEST_P(Inherited, BlockedSignalsDoNotKeepSyncrunFromEndingNorWorkersFromEndingWithTheirMaster) {
  const TemporaryFolder folder;
  const bool is_alone = GetParam() == Front::nothing;
  OddRun run = run_after(block_all, GetParam(), {"hold", folder.at("go")});
  ASSERT_TRUE(run.prints("ready")) << run.errors();
  run.send(is_alone ? SIGKILL : SIGTERM);
  run.expect_end(is_alone ? 1000 + SIGKILL : 128 + SIGTERM);
}

// ---- its place among processes ----------------------------------------------------------------------------------

TEST_P(Inherited, PrioritiesAndSessionsDoNotMatter) {
  expect_works_after([] { static_cast<void>(::nice(19)); });
  expect_works_after([] { ::setsid(); });
}

TEST_P(Inherited, BeingTheFirstProcessOfANamespaceDoesNotMatter) {
  if (::access("/usr/bin/unshare", X_OK) != 0) GTEST_SKIP() << "there is no unshare here";
  const Arguments unshare{"--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"};
  Arguments trial = unshare;
  trial.emplace_back("/bin/true");
  if (CommandRun(trial, {}, "/usr/bin/unshare").exit_code() != 0) {
    GTEST_SKIP() << "this machine lets nobody make a namespace of processes";
  }
  Arguments all = unshare;
  if (GetParam() == Front::syncrun) all.emplace_back(SYNCRUN_COMMAND);
  for (const char* word : {ODD_PROGRAM, "add"}) all.emplace_back(word);
  CommandRun run(all, {}, "/usr/bin/unshare");
  run.expect_end(0);
  EXPECT_EQ(run.output(), sum_of(1 << 20));
}

// ---- folders -----------------------------------------------------------------------------------------------------

class Places : public OnBothFronts {};
INSTANTIATE_ON_BOTH_FRONTS(Places);

TEST_P(Places, WithoutProcAreRefusedBeforeAnyWorkerStarts) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the address sanitizer itself requires /proc";
#endif
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount over /proc";
  OddRun run = run_after([] { mount_over("/proc"); }, GetParam(), {"add"});
  run.expect_end(1);
  EXPECT_THAT(run.last_error_line(),
              testing::StartsWith("syncrun: cannot find this program's own image at /proc/self/exe "
                                  "(is /proc mounted?)"));
  EXPECT_THAT(run.errors(), Not(HasSubstr("rank")));
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

/// For children.
void lose_the_current_folder() {
  const TemporaryFolder folder;
  require(::chdir(folder.path().c_str()) == 0);
}

TEST_P(Places, ThatAreGoneCanBeTheCurrentOne) { expect_works_after(lose_the_current_folder); }

TEST(CurrentFolder, ThatIsGoneTakesNoRelativeLogFolder) {
  Start start;
  start.in_child = lose_the_current_folder;
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

// syncrun --wrap and --wrap-terminal, with real programs under real wrappers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/command_run.hpp"
#include "tests/support/gdb.hpp"
#include "tests/support/slowdown.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

/// Valgrind takes some seconds to start, and more if other tests use the cores.
constexpr std::chrono::seconds kLongLimit{120};

using Words = std::vector<std::string>;

Words with_program(Words options, const Words& program) {
  options.insert(options.begin(), {"-n", "3"});
  options.emplace_back(DEBUGGED_PROGRAM);
  options.insert(options.end(), program.begin(), program.end());
  return options;
}

bool is_installed(const std::string& tool) {
  return std::system(("command -v " + tool + " >/dev/null 2>&1").c_str()) == 0;
}

#define SKIP_WITHOUT_GDB() \
  if (!gdb_works()) GTEST_SKIP() << "gdb is not installed or may not trace processes"

// ---- wrappers ---------------------------------------------------------------------------------------------------

TEST(Wrap, RunsTheWorkersOfItsRanksUnderTheirCommands) {
  CommandRun run(with_program(
      {"--wrap", "0:env WRAPPED=first", "--wrap", "2:env \"WRAPPED=rank $RANK of $WORLD_SIZE\""}, {"say"}));
  run.expect_end(0);
  EXPECT_THAT(run.output(),
              AllOf(HasSubstr("[rank 0] rank 0 is first\n"), HasSubstr("[rank 1] rank 1 is not wrapped\n"),
                    HasSubstr("[rank 2] rank 2 is rank 2 of 3\n")));
}

/// A shell that has more to do forks for the program.
TEST(Wrap, MayBeTheParentOfTheWorker) {
  CommandRun run(with_program({"--wrap", "*:sh -c '\"$@\"; exit $?' sh"}, {"count"}));
  run.expect_end(0);
  EXPECT_EQ(run.output(), "1000 rows\n");
}

TEST(Wrap, EndsWithTheJobIfTheMasterDies) {
  CommandRun run(with_program({"--wrap", "1:sh -c '\"$@\"; exit $?' sh"}, {"hang", "1"}));
  ASSERT_TRUE(run.prints("hangs"));
  run.send(SIGKILL);
  EXPECT_TRUE(run.nothing_remains());
}

TEST(Wrap, ThatEndsEarlyIsNamedWithItsExitCode) {
  CommandRun run(with_program({"--wrap", "1:sh -c 'exit 7' -c"}, {"count"}));
  run.expect_end(1);
  EXPECT_THAT(run.last_error_line(), AllOf(HasSubstr("rank 1"), HasSubstr("its wrapper 'sh -c 'exit 7' -c' exited with "
                                                                          "code 7 before the worker had begun")));
}

TEST(Wrap, ThatFailsAfterItsWorkerIsNamedWithItsExitCode) {
  CommandRun run(with_program({"--wrap", "1:sh -c '\"$@\"; exit 9' sh"}, {"count"}));
  run.expect_end(1);
  EXPECT_THAT(run.last_error_line(),
              AllOf(HasSubstr("rank 1"), HasSubstr("its wrapper"), HasSubstr("exited with code 9")));
}

TEST(Wrap, MayNotRunTheProgramTwice) {
  CommandRun run(with_program({"--wrap", "1:sh -c '\"$@\" & \"$@\"; wait; exit 0' sh"}, {"count"}));
  run.expect_end(0);
  EXPECT_THAT(run.errors(), HasSubstr("expected a command that runs the program once, but it has started the worker of "
                                      "rank 1 again"));
}

TEST(Wrap, ThatIsWrongEndsSyncrunBeforeWorkersStart) {
  const std::pair<Words, std::string> cases[] = {
      {{"--wrap", "0:no-such-tool"}, "no-such-tool: not found in PATH"},
      {{"--wrap", "0:/etc/passwd"}, "/etc/passwd: Permission denied"},
      {{"--wrap", "0:env", "--wrap", "*:env"}, "rank 0 has two"},
      {{"--wrap", "0-2:env", "--wrap", "2,5:nice"}, "rank 2 has two: '0-2:env' and '2,5:nice'"},
      {{"--wrap", "x:env"}, "expected ranks"},
      {{"--wrap", ""}, "expected RANKS:COMMAND"},
      {{"--wrap-terminal", "screen", "--wrap", "0:env"}, "expected tmux or xterm, got 'screen'"}};
  for (const auto& [options, words] : cases) {
    CommandRun run(with_program(options, {"say"}));
    run.expect_end(2);
    EXPECT_THAT(run.last_error_line(), HasSubstr(words));
    EXPECT_EQ(run.output(), "");
  }
}

/// Only the program knows how many workers there are.
TEST(Wrap, OfAnUnknownRankEndsTheProgramBeforeWorkersStart) {
  CommandRun run(with_program({"--wrap", "1,3:env"}, {"say"}));
  run.expect_end(1);
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr("--wrap (SYNCRUN_WRAP) '1,3:env': expected ranks from 0 to 2, since there are 3 workers; got rank 3"));
  EXPECT_EQ(run.output(), "");
}

// ---- debuggers --------------------------------------------------------------------------------------------------

TEST(WrapGdb, ShowsWhereTheWorkerCrashed) {
  SKIP_WITHOUT_GDB();
  const std::string gdb = "gdb -q -batch -ex run -ex 'thread apply all bt' --args";
  CommandRun run(with_program({"--wrap", "*:" + gdb}, {"crash", "1"}));
  EXPECT_EQ(run.exit_code(kLongLimit), 1);
  EXPECT_THAT(run.output(), HasSubstr("in crash_here ()"));
  EXPECT_THAT(run.errors(), AllOf(HasSubstr("rank 1"), HasSubstr("its wrapper '" + gdb + "'")));
  EXPECT_TRUE(run.nothing_remains());
}

/// The debugger holds the worker for longer than the deadlines: first before its main, then in the call.
TEST(WrapGdb, PausesDeadlines) {
  SKIP_WITHOUT_GDB();
  CommandRun run(with_program({"--start-timeout", "8", "--timeout", "3", "--wrap",
                               "2:gdb -q -batch -ex 'break stop_here' -ex starti -ex 'shell sleep 10' -ex continue "
                               "-ex 'shell sleep 5' -ex continue --args"},
                              {"count"}));
  EXPECT_EQ(run.exit_code(kLongLimit), 0) << run.errors();
  EXPECT_THAT(run.output(), AllOf(ContainsRegex("Breakpoint 1, .*stop_here \\(\\)"), HasSubstr("1000 rows\n")));
}

TEST(WrapGdb, WithoutInputSaysWhatToDo) {
  SKIP_WITHOUT_GDB();
  CommandRun run(with_program({"--wrap", "0:gdb -q --args"}, {"count"}));
  EXPECT_EQ(run.exit_code(kLongLimit), 1);
  EXPECT_THAT(run.errors(), HasSubstr("before the worker had begun. gdb has no input here: use --wrap-terminal"));
}

TEST(WrapValgrind, ChecksOneRank) {
  if (!is_installed("valgrind")) GTEST_SKIP() << "valgrind is not installed";
  if (kSlowdown != 1) GTEST_SKIP() << "valgrind cannot run programs with a sanitizer";
  CommandRun run(with_program({"--start-timeout", "0", "--wrap", "1:valgrind --error-exitcode=9"}, {"count"}));
  EXPECT_EQ(run.exit_code(kLongLimit), 0) << run.errors();
  EXPECT_EQ(run.output(), "1000 rows\n");
  EXPECT_THAT(run.errors(), HasSubstr("ERROR SUMMARY: 0 errors"));
}

// ---- terminals --------------------------------------------------------------------------------------------------

/// A server of tmux for this test alone.
class WrapTmux : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_installed("tmux")) GTEST_SKIP() << "tmux is not installed";
    ::unsetenv("TMUX");
    ::setenv("TMUX_TMPDIR", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    static_cast<void>(std::system("tmux kill-server >/dev/null 2>&1"));
    ::unsetenv("TMUX_TMPDIR");
  }
  static std::string session_of(const CommandRun& run) {
    static const std::string start = "tmux attach -t ";
    const auto is_named = [&] {
      const auto at = run.errors().find(start);
      return at != std::string::npos && run.errors().find('\n', at) != std::string::npos;
    };
    if (!eventually(is_named)) return "none";
    const std::string rest = run.errors().substr(run.errors().find(start) + start.size());
    return rest.substr(0, rest.find('\n'));
  }
  static void type(const std::string& session, const std::string& line) {
    EXPECT_EQ(std::system(("tmux send-keys -t " + session + " '" + line + "' Enter").c_str()), 0);
  }
  bool shows(const std::string& session, const std::string& text) const {
    const std::string file = folder_.at("screen");
    const auto is_shown = [&] {
      static_cast<void>(std::system(("tmux capture-pane -p -t " + session + " >" + file + " 2>/dev/null").c_str()));
      return text_of(file).find(text) != std::string::npos;
    };
    return eventually(is_shown, kLongLimit);
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(WrapTmux, GivesADebuggerATerminal) {
  SKIP_WITHOUT_GDB();
  // The leak checker of a build with a sanitizer does not work under a debugger.
  CommandRun run(with_program({"--start-timeout", "1", "--env", "ASAN_OPTIONS=detect_leaks=0", "--wrap",
                               "1:gdb -q --args", "--wrap-terminal", "tmux"},
                              {"count"}));
  const std::string session = session_of(run);
  ASSERT_TRUE(shows(session, "(gdb)")) << run.errors();
  type(session, "break stop_here");
  type(session, "run");
  ASSERT_TRUE(shows(session, "Breakpoint 1, ")) << run.errors();
  type(session, "continue");
  ASSERT_TRUE(shows(session, "exited normally")) << run.errors();
  type(session, "quit");
  EXPECT_EQ(run.exit_code(kLongLimit), 0) << run.errors();
  EXPECT_EQ(run.output(), "1000 rows\n");
}

TEST_F(WrapTmux, EndsTheJobWhenTheTerminalIsClosed) {
  CommandRun run(with_program({"--wrap", "1:env", "--wrap-terminal", "tmux"}, {"hang", "1"}));
  const std::string session = session_of(run);
  ASSERT_TRUE(shows(session, "hangs")) << run.errors();
  // The server ends with its last session, and may not answer then.
  EXPECT_EQ(std::system("tmux new-session -d -s stays"), 0);
  EXPECT_EQ(std::system(("tmux kill-session -t " + session).c_str()), 0);
  EXPECT_EQ(run.exit_code(kLongLimit), 1);
  EXPECT_THAT(run.errors(), HasSubstr("its wrapper 'env'"));
}

/// The tests have no X server. This xterm writes the title, and runs what stands after -e.
TEST(WrapXterm, GetsATitleAndTheCommand) {
  const TemporaryFolder folder;
  write_text(folder / "xterm", "#!/bin/sh\necho \"$2\" >" + folder.at("title") + "\nshift 3\nexec setsid \"$@\"\n");
  std::filesystem::permissions(folder / "xterm", std::filesystem::perms::owner_all);
  Start start;
  start.in_child = [&] {
    ::setenv("PATH", (folder.path().string() + ":" + std::getenv("PATH")).c_str(), 1);
    ::setenv("DISPLAY", ":0", 1);
  };
  CommandRun run(with_program({"--wrap", "1:env WRAPPED=yes", "--wrap-terminal", "xterm"}, {"say"}), start);
  run.expect_end(0);
  EXPECT_THAT(run.output(), HasSubstr("rank 1 is yes\n"));
  EXPECT_EQ(text_of(folder / "title"), "rank 1\n");
}

TEST(WrapXterm, RequiresAnXServer) {
  if (!is_installed("xterm")) GTEST_SKIP() << "xterm is not installed";
  Start start;
  start.in_child = [] { ::unsetenv("DISPLAY"); };
  CommandRun run(with_program({"--wrap", "1:env", "--wrap-terminal", "xterm"}, {"say"}), start);
  run.expect_end(2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("DISPLAY is not set"));
}

}  // namespace
}  // namespace syncrun::test

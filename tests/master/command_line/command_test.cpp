// `syncrun` as its users see it: exit codes, messages, and what it gives to the program.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using namespace std::string_literals;

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Command, SaysThatTheProgramUsesALibraryOfAnotherVersion) {
  const std::string own = "this is syncrun " SYNCRUN_VERSION ", and the program uses the library of ";
  for (const auto& [librarys, words] : {std::pair("0.0.7", "version 0.0.7"), {"", "an earlier version"}}) {
    CommandRun run({scripted_program(), "use-version", librarys});
    EXPECT_EQ(run.exit_code(), 0);
    EXPECT_THAT(run.errors(), HasSubstr(own + words +
                                        ": options and messages may be lost. Use the syncrun that was "
                                        "installed with the library\n"));
  }
}

TEST(Command, RefusesUnknownTopicsAndShells) {
  for (const auto& [words, message] : {
           std::pair<std::vector<std::string>, std::string>{{"help", "nods"},
                                                            "syncrun help: expected one of debugging, devices, "},
           {{"help", "nodes", "output"}, "syncrun help: expected one topic at most, got 'nodes' and 'output'"},
           {{"completions"}, "syncrun completions: expected one shell: bash, zsh or fish"},
           {{"completions", "tcsh"}, "syncrun completions: expected bash, zsh or fish, got 'tcsh'"},
       }) {
    CommandRun run(words);
    EXPECT_EQ(run.exit_code(), 2);
    EXPECT_THAT(run.errors(), HasSubstr(message));
    EXPECT_EQ(run.output(), "");
  }
}

TEST(Command, GivesTheProgramItsWordsAsWritten) {
  CommandRun run({"-n", "2", scripted_program(), "report-start", "-n", "5", "--", "--help", "two words"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_THAT(run.output(), StartsWith("argument " + scripted_program() +
                                       "\nargument report-start\nargument -n\nargument 5\nargument --\nargument "
                                       "--help\nargument two words\n"));
}

TEST(Command, SearchesThePathAndKeepsTheName) {
  CommandRun run({"sh", "-c", "echo \"name $0\""});
  EXPECT_EQ(run.exit_code(), 125);
  EXPECT_EQ(run.output(), "name sh\n");
}

TEST(Command, SetsOneVariableForEachOption) {
  ::setenv("SYNCRUN_DEVICES", "cpu7", 1);
  const TemporaryFolder folder;
  CommandRun run({"--nproc-per-node=2", "--timeout", "1.5", "--start-timeout=0", "--log-dir", folder.at("./logs"),
                  "--log-level=debug", "--profile", "-", "--trace=" + folder.at("./trace.json"),
                  "--metrics=unix:" + folder.at("./socket"), "--quiet", "--bind-to", "core", "--report-bindings",
                  scripted_program(), "report-start"});
  ::unsetenv("SYNCRUN_DEVICES");
  EXPECT_EQ(run.exit_code(), 0);
  const std::string in = folder.at("");
  for (const std::string& line :
       {"NPROC_PER_NODE=2"s, "TIMEOUT=1.5"s, "START_TIMEOUT=0"s, "LOG_DIR=" + in + "logs", "LOG_LEVEL=debug"s,
        "PROFILE=-"s, "TRACE=" + in + "trace.json", "METRICS=unix:" + in + "socket", "QUIET=on"s, "BIND_TO=core"s,
        "REPORT_BINDINGS=on"s}) {
    EXPECT_THAT(run.output(), HasSubstr("SYNCRUN_" + line + "\n"));
  }
  EXPECT_THAT(run.output(), Not(HasSubstr("SYNCRUN_DEVICES")));
}

TEST(Command, KeepsInternalVariablesFromTheProgram) {
  const std::vector<std::string> names{"WORKER_RANK", "SEGMENT_FD", "SEGMENT_BYTES", "SOCKET_FD",
                                       "DEVICE",      "MASTER_PID", "HELPER",        "SPEC_FD",
                                       "CHANNEL_FD",  "JOB",        "NODE",          "IN_JOB"};
  Start start;
  start.in_child = [&] {
    for (const auto& name : names) ::setenv(("SYNCRUN_" + name).c_str(), "0", 1);
  };
  CommandRun run({scripted_program(), "report-start"}, start);
  EXPECT_EQ(run.exit_code(), 0);
  for (const auto& name : names) EXPECT_THAT(run.output(), Not(HasSubstr("SYNCRUN_" + name + "="))) << name;
}

TEST(SupervisorSocket, ThatIsNoneIsNamedAndLeftAlone) {
  for (const std::string value : {"seven", "7", "0", "-1", "99999999999"}) {
    Start start;
    start.in_child = [&] {
      ::dup2(::open("/dev/null", O_RDWR), 7);
      ::setenv("SYNCRUN_SUPERVISOR_FD", value.c_str(), 1);
    };
    CommandRun run({"exit", "0"}, start, scripted_program());
    EXPECT_EQ(run.exit_code(), 0);
    EXPECT_THAT(run.errors(), StartsWith("syncrun: SYNCRUN_SUPERVISOR_FD: expected an open socket to the syncrun that "
                                         "runs this program, got '" +
                                         value + "'"));
  }
}

TEST(Command, StartsTheProgramWithNothingBlocked) {
  CommandRun run({scripted_program(), "report-start"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_THAT(run.output(), HasSubstr("nothing is blocked"));
}

TEST(Command, DoubtsAProgramThatNeverStartedSyncrun) {
  CommandRun run({scripted_program(), "exit-without-hello", "0"});
  EXPECT_EQ(run.exit_code(), 125);
  EXPECT_EQ(run.last_error_line(), "syncrun: " + scripted_program() +
                                       " ended (exited with code 0) without starting Syncrun: is it a Syncrun program? "
                                       "Its main must call syncrun::run or syncrun::serve_if_worker");
  CommandRun failing({scripted_program(), "exit-without-hello", "4"});
  EXPECT_EQ(failing.exit_code(), 4);
}

TEST(Command, EndsWith2OnBadOptionsAndStartsNothing) {
  const std::vector<std::vector<std::string>> lines{{"-n", "0"},
                                                    {"-n", "-1"},
                                                    {"-n", "x"},
                                                    {"--devices", "foo1"},
                                                    {"--devices", "cpu0,cpu0"},
                                                    {"--devices", "dev0=cpu0,dev0=cpu1"},
                                                    {"--devices", "cpux=cpu0"},
                                                    {"--timeout", "soon"},
                                                    {"--log-level", "x"},
                                                    {"--no-option"},
                                                    {"--log-dir", "/dev/null/logs"}};
  for (auto line : lines) {
    line.insert(line.end(), {scripted_program(), "report-start"});
    CommandRun run(line);
    EXPECT_EQ(run.exit_code(), 2) << line[0];
    EXPECT_THAT(run.errors(), StartsWith("syncrun: ")) << line[0];
    EXPECT_EQ(run.output(), "") << line[0];
  }
}

TEST(Command, MakesTheLogDirButNotInADryRun) {
  const TemporaryFolder folder;
  const std::string path = folder.at("logs");
  EXPECT_EQ(CommandRun({"--log-dir", path, "--dry-run", scripted_program(), "exit", "0"}).exit_code(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(CommandRun({"--log-dir", path, scripted_program(), "exit", "0"}).exit_code(), 0);
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

TEST(Command, OnlySaysWhatItWouldStartInADryRun) {
  CommandRun run({"--dry-run", "--devices", "cpu4,cpu2", "--timeout", "7", scripted_program(), "exit", "it's 3"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_EQ(run.output(), "command:\n  " + scripted_program() +
                              " exit 'it'\\''s 3'\ndevices:\n  rank 0: cpu4\n  rank 1: cpu2\nvariables:\n  "
                              "SYNCRUN_DEVICES=cpu4,cpu2\n  SYNCRUN_TIMEOUT=7\n  SYNCRUN_NPROC_PER_NODE is unset\n  "
                              "SYNCRUN_CONTEXTS is unset\n");
  EXPECT_EQ(CommandRun({"--dry-run", "no-such-program"}).exit_code(), 127);
}

TEST(Command, ShowsTheNamesOfDevicesInADryRun) {
  CommandRun run({"--dry-run", "--devices", "dev0=cpu4,cpu2,dev1=cpu4", scripted_program(), "exit", "0"});
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_THAT(run.output(), HasSubstr("devices:\n  rank 0: cpu4 (dev0, dev1)\n  rank 1: cpu2\n"));
}

TEST(Command, ReadsContextsInADryRunUnlessDevicesAreChosenOtherwise) {
  const Start contexts{.in_child = [] { ::setenv("SYNCRUN_CONTEXTS", "dev0->cpu4;dev1->cpu2", 1); }};
  const auto output = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--dry-run", scripted_program(), "exit", "0"});
    CommandRun run(options, contexts);
    EXPECT_EQ(run.exit_code(), 0);
    return run.output();
  };
  EXPECT_THAT(output({}), HasSubstr("devices:\n  rank 0: cpu4 (dev0)\n  rank 1: cpu2 (dev1)\nvariables:\n"));
  EXPECT_THAT(output({"--devices", "cpu7"}),
              HasSubstr("devices (--devices chooses them, so SYNCRUN_CONTEXTS is ignored):\n  rank 0: cpu7\n"));
  EXPECT_THAT(output({"-n", "cpu"}), HasSubstr("devices (-n chooses them, so SYNCRUN_CONTEXTS is ignored):\n"));
}

TEST(Command, PrintsHelpAndVersion) {
  CommandRun help({"--help"});
  EXPECT_EQ(help.exit_code(), 0);
  EXPECT_THAT(help.output(), StartsWith("usage: syncrun"));
  for (const char* word : {"help", "-h"}) {
    CommandRun other({word});
    EXPECT_EQ(other.exit_code(), 0);
    EXPECT_EQ(other.output(), help.output());
  }
  CommandRun version({"--version"});
  EXPECT_EQ(version.exit_code(), 0);
  EXPECT_THAT(version.output(), StartsWith("syncrun "));
}

TEST(Command, RunsAProgramThatHasTheNameOfASubcommand) {
  CommandRun run({"--", "help"});
  EXPECT_EQ(run.exit_code(), 127);
  EXPECT_THAT(run.errors(), HasSubstr("help: program not found in PATH"));
}

}  // namespace
}  // namespace syncrun::test

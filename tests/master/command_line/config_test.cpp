// The configuration file, `syncrun config`, and the options that change the environment and the folder of the program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

class Config : public testing::Test {
 protected:
  void write(const std::string& text) const {
    std::filesystem::create_directories(folder_ / "syncrun");
    write_text(file(), text);
  }
  std::string file() const { return (folder_ / "syncrun" / "config").string(); }
  Start start(const std::string& variable = "UNUSED", const std::string& value = "") const {
    Start start;
    start.in_child = [=, this] {
      ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
      ::setenv(variable.c_str(), value.c_str(), 1);
    };
    return start;
  }
  /// What the program or `syncrun config` prints.
  std::string output(const Words& words, const Start& start) const {
    CommandRun run(words, start);
    EXPECT_EQ(run.exit_code(), 0) << run.errors();
    return run.output();
  }
  std::string refusal(const std::string& text) const {
    write(text);
    CommandRun run({scripted_program(), "exit", "0"}, start());
    EXPECT_EQ(run.exit_code(), 2) << text;
    return run.last_error_line();
  }
  static void SetUpTestSuite() {
    if (!SYNCRUN_HAS_TOML) GTEST_SKIP() << "built without toml++";
  }

  TemporaryFolder folder_;
  Words report_{scripted_program(), "report-start"};
};

TEST_F(Config, ComesAfterTheCommandLineAndTheEnvironment) {
  write("timeout = 7.5\nlog-level = 'error'\ntag = false\nquiet = true\nonly-rank = [0, '2-3']\n");
  EXPECT_THAT(output(report_, start()), AllOf(HasSubstr("SYNCRUN_TIMEOUT=7.5\n"),
                                              HasSubstr("SYNCRUN_LOG_LEVEL=error\n"), HasSubstr("SYNCRUN_TAG=off\n"),
                                              HasSubstr("SYNCRUN_QUIET=on\n"), HasSubstr("SYNCRUN_ONLY_RANK=0,2-3\n")));
  EXPECT_THAT(output(report_, start("SYNCRUN_TIMEOUT", "8")), HasSubstr("SYNCRUN_TIMEOUT=8\n"));
  Words words = report_;
  words.insert(words.begin(), {"--timeout", "9", "--tag"});
  EXPECT_THAT(output(words, start("SYNCRUN_TIMEOUT", "8")),
              AllOf(HasSubstr("SYNCRUN_TIMEOUT=9\n"), HasSubstr("SYNCRUN_TAG=on\n")));
}

TEST_F(Config, ChoosesDevicesOnlyIfNothingElseDoes) {
  write("devices = 'cpu0,cpu1'\n");
  EXPECT_THAT(output(report_, start()), HasSubstr("SYNCRUN_DEVICES=cpu0,cpu1\n"));
  Words words = report_;
  words.insert(words.begin(), {"-n", "1"});
  EXPECT_THAT(output(words, start()), AllOf(HasSubstr("NPROC_PER_NODE=1\n"), Not(HasSubstr("SYNCRUN_DEVICES="))));
  EXPECT_THAT(output(report_, start("SYNCRUN_CONTEXTS", "a->cpu0")), Not(HasSubstr("SYNCRUN_DEVICES=")));
}

TEST_F(Config, MayHaveAListOfWrappers) {
  write("wrap = ['0:env A=1,2', '1:env']\n");
  EXPECT_THAT(output(report_, start()), HasSubstr("SYNCRUN_WRAP=0:env A=1,2\n1:env\n"));
}

TEST_F(Config, MayNameATerminalWithoutAWrapper) {
  write("wrap-terminal = 'tmux'\n");
  write_text(folder_.at("tmux"), "#!/bin/sh\n");
  std::filesystem::permissions(folder_ / "tmux", std::filesystem::perms::owner_all);
  EXPECT_THAT(output(report_, start("PATH", folder_.path().string())), HasSubstr("SYNCRUN_WRAP_TERMINAL="));
}

TEST_F(Config, MaySayHowLogFilesAreWithoutALogFolder) {
  write("log-size = \"1M\"\ntee = \"0\"\n");
  EXPECT_THAT(output(report_, start()), Not(HasSubstr("SYNCRUN_LOG_SIZE")));
  Words with_folder{"--log-dir", (folder_ / "logs").string()};
  with_folder.insert(with_folder.end(), report_.begin(), report_.end());
  EXPECT_THAT(output(with_folder, start()), HasSubstr("SYNCRUN_LOG_SIZE=1M"));
}

TEST_F(Config, SetsVariablesThatAreNotSet) {
  write("[env]\nSYNCRUN_FROM_FILE = 3\nSYNCRUN_BOTH = 'file'\n");
  EXPECT_THAT(output(report_, start("SYNCRUN_BOTH", "environment")),
              AllOf(HasSubstr("SYNCRUN_FROM_FILE=3\n"), HasSubstr("SYNCRUN_BOTH=environment\n")));
}

TEST_F(Config, ThatIsBrokenIsRefusedWithItsLine) {
  EXPECT_THAT(refusal("timeout = 3\nlog-level = \n"), HasSubstr(file() + ", line 2: expected TOML"));
  EXPECT_THAT(refusal("\ntimeuot = 3\n"), HasSubstr(file() + ", line 2: expected the name of an option (see syncrun "
                                                             "--help), got 'timeuot'; did you mean --timeout?"));
  EXPECT_THAT(refusal("timeout = 'soon'\n"), HasSubstr(file() + ", line 1: timeout: expected seconds"));
  EXPECT_THAT(refusal("quiet = 3\n"), HasSubstr("quiet: expected true or false, got 3"));
  EXPECT_THAT(refusal("timeout = true\n"), HasSubstr("timeout: expected a value (SECONDS), got true"));
  EXPECT_THAT(refusal("dry-run = true\n"), HasSubstr("expected the name of an option"));
  EXPECT_THAT(refusal("[timeout]\nx = 1\n"), HasSubstr("timeout: expected a text, a number"));
  std::filesystem::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  CommandRun run(report_, start());
  EXPECT_EQ(run.exit_code(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("found no regular file"));
}

TEST_F(Config, IsShownWithTheSourceOfEachValue) {
  write("grace = 2\ntag = false\n");
  const std::string shown = output({"config", "--log-level", "info"}, start("SYNCRUN_TIMEOUT", "8"));
  EXPECT_THAT(shown,
              AllOf(HasSubstr("# file: " + file() + "\n"), ContainsRegex("grace = \"2\" +# " + file() + ", line 1\n"),
                    ContainsRegex("tag = false +# " + file() + ", line 2\n"),
                    ContainsRegex("timeout = \"8\" +# environment: SYNCRUN_TIMEOUT\n"),
                    ContainsRegex("log-level = \"info\" +# command line\n"),
                    ContainsRegex("start-timeout = \"60\" +# default\n"), HasSubstr("# devices is not set\n")));
  write(shown);  // it is itself a configuration file
  EXPECT_THAT(output({"config"}, start()), ContainsRegex("timeout = \"8\" +# " + file()));
  CommandRun run({"config", "program"}, start());
  EXPECT_EQ(run.exit_code(), 2);
}

TEST_F(Config, ShowsTheVariablesForTheProgramAsItsLastTable) {
  EXPECT_THAT(output({"config"}, start()), Not(HasSubstr("[env]")));
  write("[env]\nOF_FILE = 3\nOF_BOTH = 'file'\nOF_LINE = 'file'\n");
  write_text(folder_.at("env"), "# a comment\nOF_ENV_FILE=x=\"y\"\n");
  const Words words{"config", "--env-file", folder_.at("env"), "-x", "OF_LINE=line", "--timeout", "3"};
  const std::string shown = output(words, start("OF_BOTH", "environment"));
  EXPECT_THAT(shown,
              AllOf(HasSubstr("\n[env]\n"), ContainsRegex("OF_FILE = \"3\" +# " + file() + ", line 2\n"),
                    ContainsRegex("OF_BOTH = \"environment\" +# environment\n"),
                    ContainsRegex("OF_LINE = \"line\" +# command line\n"), HasSubstr("OF_ENV_FILE = \"x=\\\"y\\\"\""),
                    HasSubstr("# " + folder_.at("env") + ", line 2\n")));
  write(shown);  // it is itself a configuration file
  EXPECT_THAT(output({"config"}, start()), ContainsRegex("OF_ENV_FILE = .* +# " + file()));
}

TEST(ConfigWithoutToml, IsRefused) {
  if (SYNCRUN_HAS_TOML) GTEST_SKIP() << "built with toml++";
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "syncrun");
  write_text(folder / "syncrun" / "config", "timeout = 3\n");
  Start start;
  start.in_child = [&] { ::setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1); };
  CommandRun run({scripted_program(), "exit", "0"}, start);
  EXPECT_EQ(run.exit_code(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("Install libtomlplusplus-dev"));
}

TEST(Program, GetsVariablesOfTheCommandLineAndOfAFile) {
  const TemporaryFolder folder;
  write_text(folder.at("env"), "# a comment\n\nSYNCRUN_A=1 = \"one\"\r\nSYNCRUN_B=\n");
  CommandRun run(
      {"--env-file", folder.at("env"), "--env", "SYNCRUN_C=x", "-x", "PATH", scripted_program(), "report-start"});
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_THAT(run.output(),
              AllOf(HasSubstr("SYNCRUN_A=1 = \"one\"\n"), HasSubstr("SYNCRUN_B=\n"), HasSubstr("SYNCRUN_C=x\n")));
  write_text(folder.at("env"), "A=1\nexport B=2\n");
  for (const auto& [words, expected] : {std::pair(Words{"--env-file", folder.at("env")},
                                                  "--env-file: " + folder.at("env") + ", line 2: expected NAME=VALUE"),
                                        {Words{"--env-file", folder.at("none")}, "cannot be read"},
                                        {Words{"--env", "=x"}, "--env: expected NAME=VALUE, got '=x'"},
                                        {Words{"--env", "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE is not set"},
                                        {Words{"--env", "SYNCRUN_WORKER_RANK=1"}, "which Syncrun sets itself"}}) {
    Words all = words;
    all.push_back(scripted_program());
    CommandRun refused(all);
    EXPECT_EQ(refused.exit_code(), 2);
    EXPECT_THAT(refused.last_error_line(), HasSubstr(expected));
  }
}

TEST(Program, RunsInAnotherFolder) {
  const TemporaryFolder folder;
  CommandRun run({"--cwd", folder.path().string(), "--error-file", "error.json", "sh", "-c", "pwd"});
  EXPECT_EQ(run.exit_code(), 125);
  EXPECT_EQ(run.output(), std::filesystem::canonical(folder.path()).string() + "\n");
  EXPECT_TRUE(folder.is_empty()) << "paths of options are those of the folder where syncrun was started";
  std::filesystem::remove("error.json");
  CommandRun refused({"--cwd", folder.at("none"), "sh"});
  EXPECT_EQ(refused.exit_code(), 2);
  EXPECT_THAT(refused.last_error_line(), HasSubstr("--cwd: expected a folder that exists"));
}

TEST(JobFiles, SayWhichProcessRunsAndWhyItFailed) {
  const TemporaryFolder folder;
  CommandRun run({"--pid-file", folder.at("pid"), "--error-file", folder.at("error"), scripted_program(), "workers"});
  ASSERT_TRUE(eventually([&] { return run.prints("ready"); }));
  EXPECT_EQ(text_of(folder / "pid"), std::to_string(run.pid()) + "\n");
  EXPECT_EQ(text_of(folder / "error"), "") << "empty while it is not known whether the job fails";
  run.send(SIGTERM);
  run.expect_end(128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(folder / "pid"));
  EXPECT_THAT(text_of(folder / "error"),
              AllOf(HasSubstr("\"kind\": \"stopped\""), HasSubstr("\"rank\": null"),
                    HasSubstr("\"message\": \"stopped by SIGTERM"), HasSubstr("\"exit_code\": 143")));
  CommandRun ended({"--error-file", folder.at("error"), scripted_program(), "exit", "255"});
  EXPECT_EQ(ended.exit_code(), 255);
  EXPECT_THAT(text_of(folder / "error"), HasSubstr("\"kind\": \"exit\"")) << "no signal has ended it";
  CommandRun refused({"--error-file", folder.at("error"), "--log-dir", "/proc/none", scripted_program(), "exit", "0"});
  EXPECT_EQ(refused.exit_code(), 2);
  EXPECT_THAT(text_of(folder / "error"), HasSubstr("--log-dir: expected a folder")) << "not the reason of the last job";
  CommandRun missing({"--error-file", folder.at("error"), folder.at("none")});
  EXPECT_EQ(missing.exit_code(), 127);
  EXPECT_THAT(text_of(folder / "error"), HasSubstr("\"exit_code\": 127"));
}

TEST(JobFiles, ThatCannotBeWrittenAreRefusedAtTheStart) {
  const TemporaryFolder folder;
  ASSERT_EQ(::symlink("/dev/null", folder.at("link").c_str()), 0);
  for (const std::string option : {"--pid-file", "--error-file"}) {
    for (const std::string name : {"link", "none/file"}) {
      CommandRun run({option, folder.at(name), scripted_program(), "exit", "0"});
      EXPECT_EQ(run.exit_code(), 2);
      EXPECT_THAT(run.last_error_line(), HasSubstr("cannot write " + option + " " + folder.at(name)));
    }
  }
}

TEST(JobFiles, ThatAreFullAreRefusedToo) {
  CommandRun run({"--pid-file", "/dev/full", scripted_program(), "exit", "0"});
  EXPECT_EQ(run.exit_code(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("cannot write --pid-file /dev/full: No space left"));
}

TEST(JobFiles, OfAnotherJobStay) {
  const TemporaryFolder folder;
  CommandRun run({"--pid-file", folder.at("pid"), scripted_program(), "workers"});
  ASSERT_TRUE(eventually([&] { return run.prints("ready"); }));
  write_text(folder / "pid", "1\n");  // as a syncrun that was started later with the same file
  run.send(SIGTERM);
  run.expect_end(128 + SIGTERM);
  EXPECT_EQ(text_of(folder / "pid"), "1\n");
}

TEST(JobFiles, ThatAreFullHideNoReason) {
  CommandRun run({"--error-file", "/dev/full", "/no/such/program"});
  EXPECT_EQ(run.exit_code(), 127);
  EXPECT_THAT(run.errors(), HasSubstr("syncrun: cannot write --error-file /dev/full: No space left"));
  EXPECT_EQ(run.last_error_line(), "syncrun: /no/such/program: program not found");
}

}  // namespace
}  // namespace syncrun::test

// The options of `syncrun` for the output of workers, and for scripts, with real workers.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
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
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

using Words = std::vector<std::string>;

/// `syncrun` with these options and three workers.
Words with(Words options, const Words& program) {
  options.insert(options.begin(), {"--quiet", "--devices", "cpu0,cpu1,cpu2"});
  options.emplace_back(SYNCRUN_PRINTING_PROGRAM);
  options.insert(options.end(), program.begin(), program.end());
  return options;
}

class Output : public testing::Test {
 protected:
  /// Runs it to a good end.
  void run(const Words& options, const Words& program) {
    CommandRun run(with(options, program));
    run.expect_end(0);
    output_ = run.output();
    errors_ = run.errors();
  }
  std::string log(int rank, const std::string& end = "") const {
    return text_of(folder_ / ("rank" + std::to_string(rank) + ".log" + end));
  }
  Words logged(Words options) const {
    options.insert(options.begin(), {"--log-dir", folder_.path().string()});
    return options;
  }

  TemporaryFolder folder_;
  std::string output_;
  std::string errors_;
};

TEST_F(Output, BeginsWithTheRankOrNot) {
  run({}, {"lines", "1"});
  EXPECT_THAT(output_, HasSubstr("[rank 1] line 0 of 1\n"));
  run({"--no-tag"}, {"lines", "1"});
  EXPECT_THAT(output_, AllOf(HasSubstr("line 0 of 1\n"), Not(HasSubstr("rank"))));
  EXPECT_THAT(errors_, AllOf(HasSubstr("error of 1\n"), Not(HasSubstr("rank"))));
  run({"--no-tag", "--tag"}, {"lines", "1"});
  EXPECT_THAT(output_, HasSubstr("[rank 1] line 0 of 1\n"));
}

TEST_F(Output, BeginsWithTheTimeInAllPartsOfALine) {
  const std::string time = "20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9][.][0-9][0-9][0-9]Z ";
  run({"--timestamps"}, {"bar"});
  const std::string start = time + "\\[rank 1\\] ";
  EXPECT_THAT(output_, MatchesRegex(start + "\r" + start + " 10%\r" + start + "100%\n"));
  run({"--timestamps", "--no-tag", "--only-rank", "2"}, {"lines", "1"});
  EXPECT_THAT(output_, MatchesRegex(time + "line 0 of 2\n"));
}

TEST_F(Output, OfChosenRanksIsShownAndFilesHaveAll) {
  run(logged({"--only-rank", "0,2"}), {"lines", "2"});
  EXPECT_THAT(output_, AllOf(HasSubstr("of 0"), HasSubstr("of 2"), Not(HasSubstr("of 1"))));
  EXPECT_THAT(errors_, Not(HasSubstr("of 1")));
  EXPECT_THAT(log(1), HasSubstr("line 0 of 1\nline 1 of 1\n"));
}

TEST_F(Output, GoesToFilesOnlyOrToBoth) {
  run(logged({"--tee", "0", "--redirect", "1"}), {"lines", "1"});
  EXPECT_THAT(output_, AllOf(HasSubstr("of 0"), HasSubstr("of 2"), Not(HasSubstr("of 1"))));
  EXPECT_THAT(log(0), HasSubstr("line 0 of 0\n"));
  EXPECT_THAT(log(1), AllOf(HasSubstr("line 0 of 1\n"), HasSubstr("error of 1\n")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rank2.log"));
}

TEST_F(Output, FillsFilesOfALimitedSize) {
  run(logged({"--log-size", "1K:2", "--redirect", "all"}), {"lines", "500"});
  std::string all;
  for (const std::string end : {".2", ".1", ""}) {
    EXPECT_LE(log(1, end).size(), 1024U);
    EXPECT_THAT(log(1, end), AllOf(StartsWith("line "), ContainsRegex("\n$")));
    all += log(1, end);
  }
  EXPECT_THAT(all, HasSubstr("line 498 of 1\nline 499 of 1\n"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rank1.log.3"));
}

TEST_F(Output, OfRanksThatAreNotThereIsRefused) {
  for (const std::string option : {"--only-rank", "--tee", "--redirect"}) {
    CommandRun run(with(logged({"--max-restarts", "2", option, "1-3"}), {"lines", "1"}));
    EXPECT_EQ(run.exit_code(), 1);
    EXPECT_THAT(run.errors(), Not(HasSubstr("restart"))) << "it would be refused again";
    EXPECT_EQ(run.last_error_line(),
              "syncrun: " + option + ": expected ranks from 0 to 2, as this session has, got 1-3");
    EXPECT_EQ(run.output(), "");
  }
  for (const Words& options : {Words{"--redirect", "1"}, {"--tee", "0"}, {"--log-size", "1M"}}) {
    CommandRun run(with(options, {"lines", "1"}));
    EXPECT_EQ(run.exit_code(), 1);
    EXPECT_EQ(run.last_error_line(),
              "syncrun: " + options[0] + ": expected a folder for files, got none; add --log-dir DIR");
  }
}

// ---- folders of log files -----------------------------------------------------------------------------------------

/// Mounts a file system over the folder, in a mount namespace of the child.
Start with_mount(const std::string& folder, const char* options, unsigned long flags, bool is_filled) {
  Start start;
  start.in_child = [=] {
    const bool is_mounted = ::unshare(CLONE_NEWNS) == 0 && ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) == 0 &&
                            ::mount("none", folder.c_str(), "tmpfs", flags, options) == 0;
    if (!is_mounted) ::_exit(99);
    const std::string text(std::size_t{1} << 20U, 'x');
    const int file = is_filled ? ::open((folder + "/filler").c_str(), O_WRONLY | O_CREAT, 0600) : -1;
    while (::write(file, text.data(), text.size()) > 0) {
    }
  };
  return start;
}

TEST_F(Output, IsNotWrittenToAFolderThatIsFullOrReadOnly) {
  const Words words = with(logged({}), {"lines", "1"});
  CommandRun full(words, with_mount(folder_.path().string(), "size=64k", 0, true));
  const int code = full.exit_code();
  if (code == 99) GTEST_SKIP() << "nothing can be mounted here";
  EXPECT_EQ(code, 2);
  EXPECT_THAT(full.last_error_line(), AllOf(StartsWith("syncrun: --log-dir: "), HasSubstr("is full: No space left")));
  CommandRun fixed(words, with_mount(folder_.path().string(), "", MS_RDONLY, false));
  EXPECT_EQ(fixed.exit_code(), 2);
  EXPECT_THAT(fixed.last_error_line(), HasSubstr("cannot be written: Read-only file system"));
}

TEST_F(Output, IsNotWrittenToALinkOfAnotherUser) {
  const std::string link = folder_.at("link");
  ASSERT_EQ(::symlink(folder_.path().c_str(), link.c_str()), 0);
  if (::lchown(link.c_str(), 54321, 54321) != 0) GTEST_SKIP() << "only root can make such a link";
  CommandRun run(with({"--log-dir", link}, {"lines", "1"}));
  EXPECT_EQ(run.exit_code(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr(link + " is a symbolic link of another user (54321)"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rank0.log"));
}

// ---- what scripts get ---------------------------------------------------------------------------------------------

TEST_F(Output, OfAFailureIsAlsoAFile) {
  const std::string file = folder_.at("error.json");
  CommandRun run(with({"--error-file", file}, {"fail"}));
  EXPECT_EQ(run.exit_code(), 1);
  const std::string read =
      "python3 -c 'import json, sys; e = json.load(open(sys.argv[1])); print(e[\"kind\"], e[\"rank\"], e[\"device\"], "
      "e[\"call\"], e[\"phase\"], e[\"cause\"], e[\"exit_code\"], e[\"stack\"], e[\"pid\"] > 0, e[\"node\"] != "
      "\"\")' " +
      file + " >" + folder_.at("fields");
  ASSERT_EQ(std::system(read.c_str()), 0) << text_of(file);
  EXPECT_THAT(text_of(folder_ / "fields"),
              MatchesRegex("function 1 cpu1 .*fail.* function the \"reason\" 1 \\[\\] True True\n"));
  EXPECT_THAT(run.last_error_line(), StartsWith("syncrun: rank 1 (cpu1, pid "));
}

TEST_F(Output, OfALostWorkerHasItsDetailsInTheFile) {
  const std::string file = folder_.at("error.json");
  CommandRun run(with({"--error-file", file}, {"die"}));
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(text_of(file),
              AllOf(HasSubstr("\"kind\": \"worker_lost\""), HasSubstr("\"rank\": 1,"), HasSubstr("killed by SIGKILL")));
}

TEST_F(Output, OfAGoodJobLeavesNoFile) {
  write_text(folder_.at("error.json"), "of the run before");
  run({"--error-file", folder_.at("error.json"), "--pid-file", folder_.at("pid")}, {"lines", "1"});
  EXPECT_TRUE(folder_.is_empty());
}

TEST_F(Output, LogLinesAreJsonInAllProcesses) {
  run({"--json-log", "--log-level", "info"}, {"warn"});
  EXPECT_THAT(errors_, HasSubstr("[rank 1] a line\n"));
  write_text(folder_.at("log"), errors_);
  const std::string read =
      "python3 -c 'import json, sys; lines = [json.loads(l) for l in open(sys.argv[1]) if l[0] == \"{\"]; "
      "print([(l[\"logger\"], l[\"rank\"], l[\"level\"], l[\"message\"]) for l in lines if \"rank\" in l and "
      "l[\"level\"] "
      "== \"warning\"], any(l[\"logger\"] == \"syncrun\" for l in lines))' " +
      folder_.at("log") + " >" + folder_.at("fields");
  ASSERT_EQ(std::system(read.c_str()), 0) << errors_;
  EXPECT_EQ(text_of(folder_ / "fields"), "[('cpu1', 1, 'warning', 'a \"log\" line')] True\n");
}

TEST_F(Output, TheVerdictIsTheLastLineInJsonToo) {
  CommandRun run(with({"--json-log"}, {"fail"}));
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(run.last_error_line(), AllOf(StartsWith("{\"logger\":\"syncrun\",\"level\":\"error\","),
                                           HasSubstr("failed in call"), HasSubstr("the \\\"reason\\\"")));
}

TEST_F(Output, OfWorkersShowsTheVariablesOfOtherLaunchers) {
  run({"--no-tag"}, {"variable", "MASTER_ADDR"});
  EXPECT_THAT(output_, HasSubstr("1 127.0.0.1\n"));
  run({"--no-tag"}, {"variable", "NODE_RANK"});
  EXPECT_THAT(output_, HasSubstr("2 0\n"));
  run({"--no-tag"}, {"variable", "MASTER_PORT"});
  EXPECT_THAT(output_, AllOf(ContainsRegex("0 [1-9][0-9]+\n"), ContainsRegex("2 [1-9][0-9]+\n")));
  run({"--no-tag", "--env", "MASTER_PORT=7", "-x", "PATH"}, {"variable", "MASTER_PORT"});
  EXPECT_THAT(output_, AllOf(HasSubstr("0 7\n"), HasSubstr("1 7\n")));
}

}  // namespace
}  // namespace syncrun::test

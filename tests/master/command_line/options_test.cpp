#include "master/command_line/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <regex>

#include "master/command_line/foreign_options.hpp"
#include "master/command_line/option_table.hpp"
#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

master::command_line::CommandOptions parse(std::vector<std::string> words) {
  words.insert(words.begin(), "syncrun");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return master::command_line::parse_command_line(static_cast<int>(words.size()), argv.data());
}

std::string refusal(const std::vector<std::string>& words) {
  return test::error_text([&] { parse(words); }, ErrorKind::usage);
}

TEST(CommandLine, EndsItsOptionsAtTwoDashes) {
  EXPECT_THAT(parse({"-n2", "--", "-prog", "-x"}).command, ElementsAre("-prog", "-x"));
}

TEST(CommandLine, WantsAPlaceForMetrics) {
  const auto target = [](const std::string& text) {
    return parse({"--metrics", text, "prog"}).value_of("SYNCRUN_METRICS");
  };
  EXPECT_EQ(target("9090"), "9090");
  EXPECT_EQ(target("-"), "-");
  EXPECT_EQ(target("/tmp/./9090"), "/tmp/9090");
  for (const std::string text : {"", "0", "65536", "unix:"})
    EXPECT_EQ(refusal({"--metrics", text, "prog"}),
              "--metrics: expected a file, unix:PATH or a port from 1 to 65535, got '" + text + "'");
}

TEST(CommandLine, RefusesToBindToUnknownParts) {
  EXPECT_EQ(refusal({"--bind-to", "slot", "prog"}),
            "--bind-to: expected none, core, socket, numa or device, got 'slot'");
  EXPECT_THAT(refusal({"-bind-to", "none", "prog"}), HasSubstr("write --bind-to with two dashes"));
}

TEST(CommandLine, WantsTwoFilesForTheErrorAndTheProcess) {
  EXPECT_EQ(refusal({"--error-file", "/tmp/file", "--pid-file", "/tmp/./file", "prog"}),
            "--error-file and --pid-file: expected two files, got /tmp/file for both");
}

TEST(CommandLine, SetsTheVariableOfTwoOptionsOnce) {
  EXPECT_THAT(master::command_line::environment_for(parse({"--tag", "--no-tag", "prog"})).set,
              ElementsAre(Pair("SYNCRUN_TAG", "off")));
}

TEST(CommandLine, WantsWholeNamesOfOptions) {
  EXPECT_THAT(refusal({"--error", "x.log", "prog"}),
              HasSubstr("expected an option of syncrun (see syncrun --help), got "))
      << "for srun, it is the file of standard error";
  EXPECT_THAT(refusal({"--time=3", "prog"}), HasSubstr("got '--time=3'"));
}

TEST(CommandLine, ReplacesNoProgramByAFile) {
  for (const std::string option : {"--error-file", "--pid-file", "--profile", "--trace", "--metrics"}) {
    EXPECT_EQ(refusal({option, "/bin/true", "prog"}), option +
                                                          ": expected a file to write, got the program '/bin/true'; is "
                                                          "the file's name missing?");
  }
}

TEST(CommandLine, WantsANumberOfRestarts) {
  EXPECT_EQ(parse({"prog"}).max_restarts, 0);
  EXPECT_EQ(parse({"prog"}).restart, 0);
  EXPECT_EQ(parse({"--restart", "2", "prog"}).restart, 2);
  for (const std::string number : {"-1", "1.5", "many", "", "1000001", "99999999999"}) {
    EXPECT_EQ(refusal({"--max-restarts", number, "prog"}),
              "--max-restarts: expected a whole number from 0 to 1000000, got '" + number + "'");
    EXPECT_EQ(refusal({"--restart", number, "prog"}),
              "--restart: expected a whole number from 0 to 1000000, got '" + number + "'");
  }
}

TEST(CommandLine, TakesTheFewestNodesOfATree) {
  EXPECT_THAT(master::command_line::environment_for(parse({"--tree-from", "5", "prog"})).set,
              ElementsAre(Pair("SYNCRUN_TREE_FROM", "5")));
  for (const std::string number : {"1", "-2", "2.5", "many", ""}) {
    EXPECT_EQ(refusal({"--tree-from", number, "prog"}),
              "--tree-from: expected a whole number from 2 to 1000000, got '" + number + "'");
  }
}

TEST(CommandLine, LeavesTheEnvironmentAloneWithoutOptions) {
  const auto changes = master::command_line::environment_for(parse({"prog"}));
  EXPECT_TRUE(changes.set.empty());
  EXPECT_TRUE(changes.unset.empty());
}

TEST(CommandLine, RefusesAMissingProgram) {
  EXPECT_THAT(refusal({}), HasSubstr("expected a program"));
  EXPECT_THAT(refusal({"-n", "2"}), HasSubstr("expected a program"));
  EXPECT_THAT(refusal({"-n", "2", "--"}), HasSubstr("expected a program"));
}

TEST(CommandLine, RefusesUnknownOptionsAndMissingValues) {
  EXPECT_THAT(refusal({"-q", "prog"}), HasSubstr("got '-q'"));
  EXPECT_THAT(refusal({"-n", "2", "--frobnicate", "prog"}), HasSubstr("got '--frobnicate'"));
  EXPECT_THAT(refusal({"--dry-run=yes", "prog"}), HasSubstr("got '--dry-run=yes'"));
  EXPECT_THAT(refusal({"--devices"}), HasSubstr("expected a value"));
  EXPECT_THAT(refusal({"--log-level", "loud", "prog"}), HasSubstr("got 'loud'"));
  EXPECT_THAT(refusal({"--trace=", "prog"}), HasSubstr("--trace: expected a file"));
  EXPECT_THAT(refusal({"--quiet=yes", "prog"}), HasSubstr("got '--quiet=yes'"));
}

TEST(CommandLine, SaysWhatToWriteForTheOptionsOfOtherTools) {
  const std::string refused = "expected an option of syncrun (see syncrun --help), got ";
  const std::string workers = "; write -n N for the number of workers on this machine";
  EXPECT_EQ(refusal({"-np2", "prog"}), refused + "'-np'" + workers);
  EXPECT_THAT(refusal({"-H", "prog"}), HasSubstr("'-H'; write --launcher auto --nodes N, or --hosts a,b,c"));
  EXPECT_THAT(refusal({"-hostfile", "prog"}), HasSubstr("'-hostfile'; write --hostfile with two dashes"));
  for (const std::string option : {"--cpu-bind=cores", "--map-by=slot"})
    EXPECT_THAT(refusal({option, "prog"}), HasSubstr("'" + option + "'; leave it out: syncrun binds workers"));
  for (const std::string option : {"--master_addr=a", "--rdzv-backend=c10d"})
    EXPECT_THAT(refusal({option, "prog"}), HasSubstr("; leave it out: the workers of a job find each other"));
}

TEST(CommandLine, AnswersEachOptionOfOtherToolsWithOptionsThatItHas) {
  const auto is_own = [](const std::string& name) {
    const auto table = master::command_line::option_table();
    return std::any_of(table.begin(), table.end(), [&](const auto& row) { return name == row.name; });
  };
  for (const auto& [name, advice] : master::command_line::foreign_options()) {
    const std::string word(name);
    const std::string written = word == "-np" ? "-np2" : word == "--bind-to" ? "-bind-to" : word;
    EXPECT_THAT(refusal({written, "prog"}), testing::EndsWith("; " + std::string(advice)));
    if (word.size() == 2) {
      EXPECT_THAT(refusal({word + "2", "prog"}), testing::EndsWith("; " + std::string(advice)));
    }
    // What it says to write is an option of syncrun.
    static const std::regex kOption("write .*?--([a-z-]+)");
    std::cmatch found;
    if (std::regex_search(advice.data(), advice.data() + advice.size(), found, kOption)) {
      EXPECT_TRUE(is_own(found[1].str())) << word << ": " << advice;
    }
  }
  for (const std::string word : {"--export=ALL", "--output=x", "--mca", "-mca", "-oversubscribe", "--rdzv_endpoint=a:1",
                                 "--node_rank=1", "--role=trainer", "-N2", "-map-by"})
    EXPECT_THAT(refusal({word, "prog"}), HasSubstr("got '" + word + "'; ")) << "it has advice";
  for (const std::string word : {"-O", "-E", "-d", "-M", "-W"})
    EXPECT_THAT(refusal({word, "prog"}), Not(HasSubstr("; "))) << "srun has another option of this letter";
}

TEST(CommandLine, AcceptsTheSpellingsOfTorchrunMpirunAndSrun) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"-np", "2"},
        {"--np=2"},
        {"--nproc_per_node=2"},
        {"--nproc_per_node", "2", "--standalone", "--nnodes=1", "--no_python"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"prog", "-np", "--nproc_per_node"});
    const auto options = parse(all);
    EXPECT_EQ(options.value_of("SYNCRUN_NPROC_PER_NODE"), "2");
    EXPECT_THAT(options.command, ElementsAre("prog", "-np", "--nproc_per_node"));
  }
  EXPECT_EQ(parse({"--nnodes", "3", "prog"}).nodes, 3);
  EXPECT_EQ(parse({"--num_nodes=3", "prog"}).nodes, 3);
  EXPECT_THAT(parse({"--host", "a,b", "prog"}).hosts, ElementsAre("a", "b"));
  EXPECT_EQ(parse({"--log_dir", "/a_b", "prog"}).value_of("SYNCRUN_LOG_DIR"), "/a_b");
  EXPECT_EQ(parse({"--max_restarts=2", "prog"}).max_restarts, 2);
  EXPECT_EQ(parse({"-wdir", "/", "prog"}).folder, "/");
  EXPECT_EQ(parse({"--no-tag", "--tag-output", "prog"}).value_of("SYNCRUN_TAG"), "on");
  EXPECT_EQ(parse({"--timestamp-output", "prog"}).value_of("SYNCRUN_TIMESTAMPS"), "on");
  parse({"-x", "SYNCRUN_TEST_X=7", "prog"});
  EXPECT_STREQ(::getenv("SYNCRUN_TEST_X"), "7");
  EXPECT_THAT(refusal({"--nnodes", "1:4", "prog"}), HasSubstr("--nodes: expected one number, got '1:4'; "));
  EXPECT_THAT(refusal({"--redirects", "3", "prog"}), HasSubstr("write --redirect RANKS"));
}

TEST(CommandLine, RefusesBadListsOfRanksAndSizes) {
  for (const std::string list : {"", ",", "x", "3-1", "1,,2", "1,", "1-", "-1", "1 ", "+1", "1000000", "99999999999"}) {
    EXPECT_THAT(
        refusal({"--only-rank", list, "prog"}),
        testing::AllOf(HasSubstr("--only-rank: expected ranks such as 0,2-5"), HasSubstr("got '" + list + "'")));
  }
  for (const std::string size : {"", "x", "0", "-1", "1T", "1M:", "1M:-1", "99999999999999999G"})
    EXPECT_THAT(refusal({"--log-size", size, "prog"}), HasSubstr("--log-size: expected a size"));
}

TEST(CommandLine, NamesTheNearestOption) {
  EXPECT_THAT(refusal({"--time-out", "3", "prog"}), HasSubstr("got '--time-out'; did you mean --timeout?"));
  EXPECT_THAT(refusal({"--log_dri=x", "prog"}), HasSubstr("got '--log_dri=x'; did you mean --log-dir?"));
  EXPECT_THAT(refusal({"--devcies", "cpu0", "prog"}), HasSubstr("did you mean --devices?"));
  EXPECT_THAT(refusal({"--frobnicate", "prog"}), testing::EndsWith("got '--frobnicate'"));
  EXPECT_THAT(refusal({"--n-best", "prog"}), testing::EndsWith("got '--n-best'"));
}

TEST(CommandLine, RefusesCountsAndDevicesThatDisagree) {
  EXPECT_THAT(refusal({"-n", "3", "--devices", "cpu0,cpu1", "prog"}), HasSubstr("disagree"));
  EXPECT_THAT(refusal({"-n", "gpu", "--devices", "cpu0", "prog"}), HasSubstr("disagree"));
  EXPECT_EQ(refusal({"-n", "2", "--devices", "cpu0,cpu1", "prog"}), "");
  EXPECT_EQ(refusal({"-n", "cpu", "--devices", "cpu4", "prog"}), "");
  EXPECT_EQ(refusal({"-n", "auto", "--devices", "cpu4", "prog"}), "");
}

TEST(CommandLine, CountsADeviceWithTwoNamesOnce) {
  EXPECT_THAT(refusal({"-n", "2", "--devices", "a=cpu0,b=cpu0", "prog"}), HasSubstr("got -n 2 and 1 CPU device (a="));
  EXPECT_EQ(refusal({"-n", "1", "--devices", "a=cpu0,b=cpu0", "prog"}), "");
}

TEST(CommandLine, RefusesBadTimes) {
  for (const std::string option : {"--timeout", "--start-timeout", "--grace"}) {
    for (const std::string value : {"", "x", "-1", "1s", "nan", "inf", "1e300", "99999999999"}) {
      EXPECT_THAT(refusal({option, value, "prog"}),
                  testing::AllOf(HasSubstr(option + ": expected seconds"), HasSubstr("got '" + value + "'")));
    }
  }
}

}  // namespace
}  // namespace syncrun::detail

// `syncrun doctor` on this machine, and `--bind-to` with the program that it runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/command_run.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// A busy machine is slow, which is no error.
constexpr std::chrono::seconds kLongest{300};

TEST(DoctorCommand, MeasuresThisMachineAndFindsNothingWrong) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "syncrun");
  std::ofstream(folder / "syncrun/config") << "trace = \"" << folder.at("trace.json") << "\"\n";
  Start start;
  start.in_child = [&] {  // what the user wants of other jobs
    ::setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1);
    ::setenv("SYNCRUN_PROFILE", folder.at("profile.json").c_str(), 1);
    ::setenv("SYNCRUN_ONLY_RANK", "4000", 1);
  };
  CommandRun run({"doctor"}, start);
  EXPECT_EQ(run.exit_code(kLongest), 0) << run.output() << run.errors();
  for (const std::string section : {"devices\n", "versions\n", "limits\n", "processes\n", "measured\n"})
    EXPECT_THAT(run.output(), HasSubstr(section));
  for (const std::string line :
       {"CPU  +.* cores ", "Syncrun  +command [0-9.]+, library [0-9.]+", "start to first call  *[0-9.]+ s",
        "empty call  +[0-9.]+ us on ", "memory copy, all ranks  +[0-9.]+ GB/s",
        "scatter of a host array  +[0-9.]+ GB/s", "all_reduce of 1 MiB  +[0-9.]+ ms"})
    EXPECT_THAT(run.output(), ContainsRegex(line));
  EXPECT_THAT(run.output(), ContainsRegex("\nsyncrun doctor: nothing is wrong, [0-9]+ warnings?\n$"));
  EXPECT_TRUE(run.nothing_remains());
  EXPECT_FALSE(std::filesystem::exists(folder / "trace.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "profile.json"));
}

TEST(DoctorCommand, SaysWhatItCouldNotMeasure) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(SYNCRUN_COMMAND, folder.at("syncrun"));
  CommandRun run({"doctor", "--json"}, {}, folder.at("syncrun"));
  EXPECT_EQ(run.exit_code(kLongest), 0) << run.output();
  EXPECT_THAT(run.output(),
              HasSubstr(R"("measured": [{"level": "warning", "what": "syncrun-probe", "value": "was not)"));
  EXPECT_THAT(run.output(), HasSubstr(R"("wrong": 0})"));
  std::ofstream(folder / "report.json") << run.output();
  const std::string check =
      "python3 -c 'import json, sys\n"
      "findings = [f for part in json.load(open(sys.argv[1]))[\"sections\"].values() for f in part]\n"
      "sys.exit([f for f in findings if (f[\"level\"] == \"ok\") != (f[\"advice\"] == \"\")] or not findings)' ";
  EXPECT_EQ(std::system((check + folder.at("report.json")).c_str()), 0) << "a finding without advice, or other text";
}

TEST(DoctorCommand, FindsThatSessionsFailWithTooFewDescriptors) {
  Start start;
  start.in_child = [] {
    const rlimit few{18, 18};
    ::setrlimit(RLIMIT_NOFILE, &few);
  };
  CommandRun run({"doctor"}, start);
  EXPECT_EQ(run.exit_code(kLongest), 1) << run.output();
  EXPECT_THAT(run.output(), ContainsRegex("wrong    open files  +18\n +-> .*ulimit -n 4096"));
}

TEST(DoctorCommand, RefusesOtherWords) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--jsn"}, {"--json", "now"}}) {
    std::vector<std::string> arguments{"doctor"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    CommandRun run(arguments);
    EXPECT_EQ(run.exit_code(), 2);
    EXPECT_THAT(run.errors(), HasSubstr("syncrun doctor: expected [--json], got '" + words.back() + "'"));
  }
}

// ---- --bind-to --------------------------------------------------------------------------------------------------

std::string probe() { return std::filesystem::path(SYNCRUN_COMMAND).parent_path() / "syncrun-probe"; }

/// What --report-bindings says about two workers of a program that ends at once, because its arguments are wrong.
std::string bindings(const std::vector<std::string>& options) {
  std::vector<std::string> arguments{"--quiet", "--report-bindings", "-n", "2"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(probe());
  CommandRun run(arguments);
  EXPECT_EQ(run.exit_code(kLongest), 1) << run.errors();
  return run.errors();
}

TEST(BindTo, BindsEachWorkerToItsCores) {
  cpu_set_t usable;
  ASSERT_EQ(::sched_getaffinity(0, sizeof usable, &usable), 0);
  if (CPU_COUNT(&usable) < 2) GTEST_SKIP() << "there is one core only";
  const std::string bound = bindings({"--bind-to", "core"});
  if (bound.find("hwloc") != std::string::npos) {
    EXPECT_THAT(bound, ContainsRegex("SYNCRUN_BIND_TO: expected hwloc, .*install .*got 'core'"));
    GTEST_SKIP() << "there is no hwloc";
  }
  EXPECT_THAT(bound, ContainsRegex("rank 0 on cpu0: cores? [0-9,-]+, NUMA node [0-9]+\n"));
  EXPECT_THAT(bound, ContainsRegex("rank 1 on cpu1: cores? [0-9,-]+, NUMA node [0-9]+\n"));
  EXPECT_THAT(bound, Not(HasSubstr("all that the job may use")));
  // How many cores these are depends on the machine.
  for (const char* target : {"socket", "numa", "device"})
    EXPECT_THAT(bindings({"--bind-to", target}), ContainsRegex("rank 1 on cpu1: cores? [0-9,-]+, NUMA node [0-9]+"));
  EXPECT_THAT(bindings({"--bind-to", "none"}), ContainsRegex("rank 1 on cpu1: cores .*all that the job may use"));
}

}  // namespace
}  // namespace syncrun::test

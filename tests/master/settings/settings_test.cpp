#include "master/settings/settings.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/os/environment.hpp"

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;

class SettingsOf : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {environment::kDevices, environment::kProcesses, environment::kTimeout, environment::kStartTimeout,
          environment::kLogLevel, environment::kLogDir, environment::kContexts, environment::kTreeFrom}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(SettingsOf, GiveWhoeverStartsTheProgramTheLastWord) {
  ::setenv(environment::kDevices, "cpu3,cpu4,cpu5", 1);
  ::setenv(environment::kTimeout, "1", 1);
  ::setenv(environment::kLogLevel, "info", 1);
  const auto settings = master::settings::resolve_settings(
      {.devices = "cpu0", .timeout = 7ms, .start_timeout = 9ms, .log_level = syncrun::LogLevel::off});
  ASSERT_EQ(settings.devices.size(), 3U);
  EXPECT_EQ(settings.call_timeout, 1s);
  EXPECT_EQ(settings.start_timeout, 9ms);
  EXPECT_EQ(settings.log_level, syncrun::LogLevel::info);
  EXPECT_EQ(settings.overruled, "SessionOptions::devices cpu0 gives way to SYNCRUN_DEVICES cpu3,cpu4,cpu5");
}

TEST_F(SettingsOf, SayWhichDevicesOfTheProgramGiveWay) {
  const auto overruled = [](const char* outside, const std::string& of_program) {
    ::setenv(environment::kDevices, outside, 1);
    return master::settings::resolve_settings({.devices = of_program}).overruled;
  };
  EXPECT_EQ(overruled("cpu0", "dev0=cpu0"), "SessionOptions::devices dev0=cpu0 gives way to SYNCRUN_DEVICES cpu0");
  EXPECT_EQ(overruled("other=cpu0,dev0=cpu0", "dev0=cpu0"), "") << "the names of the program are there";
  EXPECT_EQ(overruled("cpu0,cpu1", "cpu0,cpu1"), "");
  EXPECT_EQ(overruled("cpu0,cpu1", ""), "");
  ::setenv(environment::kContexts, "dev0->cpu3", 1);
  EXPECT_EQ(overruled("", "cpu0"), "SessionOptions::devices cpu0 gives way to SYNCRUN_CONTEXTS dev0->cpu3");
}

TEST_F(SettingsOf, SayFromHowManyNodesOnMessagesGoAlongATree) {
  EXPECT_EQ(master::settings::resolve_settings({.devices = "cpu0"}).tree_from, 16);
  ::setenv(environment::kTreeFrom, "5", 1);
  EXPECT_EQ(master::settings::resolve_settings({.devices = "cpu0"}).tree_from, 5);
}

}  // namespace

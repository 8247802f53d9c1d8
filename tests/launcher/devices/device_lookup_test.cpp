#include "launcher/devices/device_lookup.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/devices/device_list.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail {
namespace {

class DeviceOf : public testing::Test {
 protected:
  Device find(std::string_view name) const { return find_device(hardware(), chosen.names, name); }
  Device of_rank(int rank) const { return device_of_rank(hardware(), chosen.names, rank); }
  std::vector<std::string> hardware() const {
    std::vector<std::string> names;
    for (const DeviceId& device : chosen.by_rank) names.push_back(to_string(device));
    return names;
  }
  template <class Action>
  static std::string refusal(Action&& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "nothing was thrown";
  }

  const ChosenDevices chosen = parse_device_list("--devices", "dev0=cpu5,cpu1,main=cpu5");
};

TEST_F(DeviceOf, AUsersNameHasThisName) {
  EXPECT_EQ(find("dev0").rank(), 0);
  EXPECT_EQ(find("dev0").name(), "dev0");
  EXPECT_EQ(find("dev0").id(), "cpu5");
  EXPECT_EQ(find("main").rank(), 0);
  EXPECT_EQ(find("main").name(), "main");
}

TEST_F(DeviceOf, TheHardwaresNameHasTheUsersFirstNameIfThereIsOne) {
  EXPECT_EQ(find("cpu5").rank(), 0);
  EXPECT_EQ(find("cpu5").name(), "dev0");
  EXPECT_EQ(find("cpu1").rank(), 1);
  EXPECT_EQ(find("cpu1").name(), "cpu1");
  EXPECT_EQ(find("cpu1").id(), "cpu1");
}

TEST_F(DeviceOf, ARankHasTheUsersFirstNameIfThereIsOne) {
  EXPECT_EQ(of_rank(0).name(), "dev0");
  EXPECT_EQ(of_rank(1).name(), "cpu1");
  EXPECT_EQ(of_rank(1).rank(), 1);
}

TEST_F(DeviceOf, TwoNamesForOneRankIsEqual) {
  EXPECT_EQ(find("dev0"), find("main"));
  EXPECT_EQ(find("dev0"), of_rank(0));
  EXPECT_NE(find("dev0"), find("cpu1"));
}

TEST_F(DeviceOf, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  EXPECT_EQ(refusal([&] { find("dev1"); }),
            "this session has no device 'dev1'; expected one of dev0 (cpu5), main (cpu5), cpu1; to name devices, use "
            "--devices NAME=DEVICE,... or SessionOptions::devices");
  for (const std::string name : {"", "cpu0", "cuda5", "cpu", "DEV0", "dev0 "}) {
    EXPECT_THAT(refusal([&] { find(name); }), testing::StartsWith("this session has no device '" + name + "'; "));
  }
}

TEST_F(DeviceOf, ARankOutOfRangeIsAnError) {
  EXPECT_EQ(refusal([&] { of_rank(2); }),
            "device requires a rank from 0 to 1, got 2; Session::world_size returns the number of ranks");
  EXPECT_THAT(refusal([&] { of_rank(-1); }), testing::HasSubstr("got -1"));
}

}  // namespace
}  // namespace syncrun::detail

#include "master/devices/device_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/protocol/control_block.hpp"
#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using namespace master::devices;
using testing::ElementsAre;
using testing::HasSubstr;

const DeviceId kCpu0{DeviceKind::cpu, 0};
const DeviceId kCpu1{DeviceKind::cpu, 1};

ChosenDevices listed(const std::string& text) { return parse_device_list("--devices", text); }
ChosenDevices contexts(const std::string& text) { return parse_contexts("SYNCRUN_CONTEXTS", text); }

using Parse = ChosenDevices (*)(const std::string& text);
std::string refusal(Parse parse, const std::string& text) {
  return test::error_text([&] { parse(text); }, ErrorKind::usage);
}

TEST(DeviceList, MayHaveNamesInAnyAlphabet) {
  EXPECT_THAT(listed("gerät=cpu0").names, ElementsAre(DeviceName{"gerät", 0}));
  EXPECT_THAT(listed("0=cpu0,GPU.1/left-eye=cpu1").names,
              ElementsAre(DeviceName{"0", 0}, DeviceName{"GPU.1/left-eye", 1}));
}

TEST(DeviceList, RefusesADeviceTwiceUnlessItHasANameInEachPlace) {
  EXPECT_EQ(refusal(listed, "cpu1,cpu0,cpu1"),
            "--devices: expected each device once, got cpu1 twice in 'cpu1,cpu0,cpu1'; list it once, or give it a name "
            "in each place, such as a=cpu1,b=cpu1");
  for (const std::string text : {"dev0=cpu0,cpu0", "cpu0,dev0=cpu0", "a=cpu0,cpu1,b=cpu0,cpu00"}) {
    EXPECT_THAT(refusal(listed, text), HasSubstr("expected each device once, got cpu0 twice in '" + text + "'"));
  }
}

TEST(DeviceList, RefusesANameTwiceAndShowsBothPlaces) {
  EXPECT_EQ(refusal(listed, "dev0=cpu0,dev0=cpu1"),
            "--devices: expected each name once, got 'dev0=cpu0' and 'dev0=cpu1' in 'dev0=cpu0,dev0=cpu1'; give one of "
            "them another name");
  EXPECT_THAT(refusal(listed, "dev0=cpu0,dev0=cpu0"), HasSubstr("got 'dev0=cpu0' and 'dev0=cpu0'"));
}

TEST(DeviceList, RefusesMalformedNames) {
  EXPECT_EQ(refusal(listed, "cpux=cpu0"),
            "--devices: expected a name that is not empty, does not begin with cpu or cuda, and has no spaces and none "
            "of -> ; , =; got 'cpux' in 'cpux=cpu0'; choose another name, such as dev0");
  for (const std::string name :
       {"", "cpu", "cpu0", "cuda", "cuda7", "cudax", "a->b", "a;b", " a", "a b", "a\n", "a\x7f"}) {
    EXPECT_THAT(refusal(listed, name + "=cpu0"), HasSubstr("expected a name that")) << name;
    EXPECT_THAT(refusal(listed, name + "=cpu0"), HasSubstr("got '" + name + "' in")) << name;
  }
}

TEST(DeviceList, RefusesUnknownDevicesAndSaysWhich) {
  EXPECT_EQ(refusal(listed, "dev0=gpu0,dev1=cpu1"),
            "--devices: expected a device such as cpu0 or cuda0 for the name dev0, got 'gpu0' in "
            "'dev0=gpu0,dev1=cpu1'; write for example dev0=cpu0");
  for (const std::string device : {"", "cpu", "dev1", "cpu0 ", "=cpu0", "cpu0=b", "cpu-1"}) {
    EXPECT_THAT(refusal(listed, "dev0=" + device), HasSubstr("for the name dev0, got '" + device + "' in")) << device;
  }
  EXPECT_EQ(refusal(listed, "dev0->cpu0"),
            "--devices: expected a list such as cpu0,cpu1 or dev0=cuda0,dev1=cuda1; got 'dev0->cpu0'");
}

TEST(DeviceList, HasAsManyEntriesAsThereCanBeRanks) {
  std::string list = "n0=cpu0";
  for (int i = 1; i < protocol::kMaxWorldSize; ++i) list += ",n" + std::to_string(i) + "=cpu0";
  EXPECT_EQ(listed(list).by_rank.size(), 1U);
  EXPECT_EQ(refusal(listed, list + ",cpu1"), "--devices: expected at most 1024 devices, got 1025; leave some out");
}

TEST(Contexts, AreReadAsTheanoReadsThem) {
  const auto devices = contexts("dev0->cpu0;dev1->cpu1");
  EXPECT_THAT(devices.by_rank, ElementsAre(kCpu0, kCpu1));
  EXPECT_THAT(devices.names, ElementsAre(DeviceName{"dev0", 0}, DeviceName{"dev1", 1}));
  EXPECT_EQ(contexts(" dev0 -> cpu0 ; dev1->cpu1"), devices);
}

TEST(Contexts, RefuseADeviceWithoutAName) {
  EXPECT_EQ(refusal(contexts, "dev0->cpu0;cpu1"),
            "SYNCRUN_CONTEXTS: expected NAME->DEVICE between semicolons, such as dev0->cuda0, got 'cpu1' in "
            "'dev0->cpu0;cpu1'; give each device a name");
  for (const std::string text : {"cpu0", "dev0=cpu0", "dev0->cpu0;", ";dev0->cpu0", " "}) {
    EXPECT_THAT(refusal(contexts, text), HasSubstr("expected NAME->DEVICE")) << text;
  }
}

TEST(Contexts, RefuseBadNamesAndDevices) {
  EXPECT_EQ(refusal(contexts, "dev0->cpu0;dev0->cpu1"),
            "SYNCRUN_CONTEXTS: expected each name once, got 'dev0->cpu0' and 'dev0->cpu1' in 'dev0->cpu0;dev0->cpu1'; "
            "give one of them another name");
  EXPECT_EQ(refusal(contexts, "dev0->gpu0"),
            "SYNCRUN_CONTEXTS: expected a device such as cpu0 or cuda0 for the name dev0, got 'gpu0' in 'dev0->gpu0'; "
            "write for example dev0->cpu0");
  for (const std::string name : {"", " ", "cpu1", "cuda", "a=b", "a,b", "a b"}) {
    EXPECT_THAT(refusal(contexts, name + "->cpu0"), HasSubstr("expected a name that")) << name;
  }
  EXPECT_THAT(refusal(contexts, "a->b->cpu0"), HasSubstr("for the name a, got 'b->cpu0'"));
}

TEST(ChosenDevices, IncludeOthersWithTheSameDevicesAndNoOtherNames) {
  EXPECT_TRUE(includes(listed("dev0=cpu0,cpu1"), listed("cpu0,cpu1")));
  EXPECT_TRUE(includes(listed("b=cpu0,a=cpu0"), listed("a=cpu0")));
  EXPECT_FALSE(includes(listed("cpu0,cpu1"), listed("dev0=cpu0,cpu1")));
  EXPECT_FALSE(includes(listed("dev0=cpu1,cpu0"), listed("cpu0,cpu1")));
}

}  // namespace
}  // namespace syncrun::detail

#include "master/devices/devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/os/wait.hpp"
#include "common/protocol/control_block.hpp"
#include "master/devices/rank_devices.hpp"
#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using namespace master::devices;
using testing::HasSubstr;

std::string names(const std::vector<DeviceId>& devices) {
  std::string text;
  for (const auto& device : devices) text.append(text.empty() ? "" : ",").append(to_string(device));
  return text;
}

std::vector<DeviceId> resolved(const std::string& devices, const std::string& processes) {
  return resolve_devices(devices, processes, kFromCommandLine).by_rank;
}

std::string refusal(const std::string& devices, const std::string& processes) {
  return test::error_text([&] { resolved(devices, processes); }, ErrorKind::usage);
}

TEST(Devices, CpuMeansOnePerUsableCore) {
  EXPECT_EQ(resolved("", "cpu").size(), static_cast<std::size_t>(os::usable_cores()));
}

TEST(Devices, AutoIsTheDefaultAndFallsBackToCores) {
  EXPECT_EQ(resolved("", ""), resolved("", "auto"));
  if (cuda_is_built() && visible_gpus() > 0) GTEST_SKIP() << "GPUs come first on this machine";
  EXPECT_EQ(resolved("", "auto"), resolved("", "cpu"));
}

TEST(Devices, RefusesUnknownNamesAndSaysWhich) {
  for (const std::string name : {"foo1", "cpu", "cpu-1", "cpux", "CPU0", "cpu0x", " cpu0", "cpu99999999999"}) {
    EXPECT_THAT(refusal(name, ""), testing::AllOf(HasSubstr("expected"), HasSubstr("got '" + name + "'")));
  }
  EXPECT_THAT(refusal("cpu0,", ""), HasSubstr("got '' in 'cpu0,'"));
  EXPECT_THAT(refusal("cpu0,,cpu1", ""), HasSubstr("got ''"));
}

TEST(Devices, SayWhereTheBadChoiceWasMade) {
  EXPECT_THAT(refusal("", "0"), testing::StartsWith("-n: "));
  EXPECT_THAT(refusal("cpu0,cpu0", ""), testing::StartsWith("--devices: "));
  const auto said_in_the_program = [] { resolve_devices("", "0", kFromProgram); };
  EXPECT_THAT(said_in_the_program, testing::ThrowsMessage<Error>(testing::StartsWith("SessionOptions::processes: ")));
  const auto said_outside = [] { resolve_devices("tpu0", "", kFromEnvironment); };
  EXPECT_THAT(said_outside, testing::ThrowsMessage<Error>(testing::StartsWith("SYNCRUN_DEVICES: ")));
}

TEST(Devices, AreChosenByTheFirstTextThatIsNotEmpty) {
  const auto names_by = [](const DevicesChoice& choice) {
    return names(resolve_devices(choice, kFromEnvironment).by_rank);
  };
  EXPECT_EQ(names_by({"cpu7", "cpu", "dev0->cpu5"}), "cpu7");
  EXPECT_EQ(names_by({"", "", "dev0->cpu5"}), "cpu5");
  EXPECT_EQ(resolve_devices(DevicesChoice{"", "cpu", "dev0->cpu5"}, kFromEnvironment).names.size(), 0U);
  EXPECT_EQ(deciding_source({"cpu7", "cpu", "dev0->cpu5"}, kFromEnvironment), "SYNCRUN_DEVICES");
  EXPECT_EQ(deciding_source({"", "cpu", "dev0->cpu5"}, kFromCommandLine), "-n");
  EXPECT_EQ(deciding_source({"", "", "dev0->cpu5"}, kFromCommandLine), "SYNCRUN_CONTEXTS");
}

TEST(Devices, OfContextsAreCheckedToo) {
  if (cuda_is_built()) GTEST_SKIP() << "this build has CUDA";
  const auto mixed = [] { resolve_devices(DevicesChoice{.contexts = "dev0->cpu0;dev1->cuda0"}, kFromEnvironment); };
  EXPECT_THAT(mixed, testing::ThrowsMessage<Error>(
                         testing::StartsWith("SYNCRUN_CONTEXTS: 'dev0->cpu0;dev1->cuda0' needs CUDA")));
}

TEST(Devices, AreMappedToRanksInOneLine) {
  const auto mapping = [](const std::string& devices) { return describe_mapping(resolved(devices, "")); };
  EXPECT_EQ(mapping("cpu3"), "rank 0 on cpu3");
  EXPECT_EQ(mapping("cpu4,cpu2"), "rank 0 on cpu4, rank 1 on cpu2");
  EXPECT_EQ(mapping("cpu0,cpu1"), "rank 0 on cpu0, rank 1 on cpu1");
  EXPECT_EQ(mapping("cpu9,cpu0,cpu1,cpu2,cpu5"), "rank 0 on cpu9, ranks 1 to 3 on cpu0 to cpu2, rank 4 on cpu5");
}

TEST(Devices, ThatCrowdTheCoresAreWorthANote) {
  const auto crowd = [](const std::string& count, int cores) { return describe_crowd(resolved("", count), cores); };
  EXPECT_EQ(crowd("16", 2), "");
  EXPECT_EQ(crowd("1000", 2), "1000 workers share 2 cores, so calls are slow; -n cpu starts one worker per core");
  EXPECT_EQ(crowd("9", 1), "9 workers share 1 core, so calls are slow; -n cpu starts one worker per core");
}

TEST(Devices, MayBeOfBothKindsIfTheirGpusAreVisible) {
  const std::vector<DeviceId> both{{DeviceKind::cuda, 0}, {DeviceKind::cpu, 7}, {DeviceKind::cuda, 1}};
  EXPECT_NO_THROW(check_gpus(both, "--devices", 2));
  const auto one_visible = [&] { check_gpus(both, "--devices", 1); };
  EXPECT_THAT(one_visible, testing::ThrowsMessage<Error>("--devices: got cuda1, but 1 GPU is visible"));
  const auto none_visible = [&] { check_gpus(both, "--devices", 0); };
  EXPECT_THAT(none_visible, testing::ThrowsMessage<Error>("--devices: got cuda0, but no GPU is visible"));
}

TEST(Devices, RefusesCudaInABuildWithoutIt) {
  if (cuda_is_built()) GTEST_SKIP() << "this build has CUDA";
  EXPECT_THAT(refusal("cuda0", ""), HasSubstr("built without"));
  EXPECT_THAT(refusal("", "gpu"), HasSubstr("built without"));
}

TEST(Devices, RefusesMoreGpusThanAreVisible) {
  if (!cuda_is_built()) GTEST_SKIP() << "this build has no CUDA";
  EXPECT_THAT(refusal("cuda1000", ""), HasSubstr("visible"));
}

TEST(Devices, RefusesBadCounts) {
  for (const std::string count : {"0", "-1", "x", "2x", "1.5", " 2", "99999999999", "CPU"}) {
    EXPECT_THAT(refusal("", count),
                testing::AllOf(HasSubstr("expected a number from 1"), HasSubstr("'" + count + "'")));
  }
  EXPECT_THAT(refusal("", std::to_string(protocol::kMaxWorldSize + 1)), HasSubstr("expected a number from 1 to"));
}

TEST(VisibleGpus, AreThoseThatTheVariableLists) {
  EXPECT_EQ(count_visible_gpus(nullptr, 4), 4);
  EXPECT_EQ(count_visible_gpus("2,0", 4), 2);
  EXPECT_EQ(count_visible_gpus("GPU-8932f937,GPU-7f1c", 1), 2);
  for (const char* none : {"", "-1", "NoDevFiles"}) EXPECT_EQ(count_visible_gpus(none, 4), 0) << none;
  EXPECT_EQ(count_visible_gpus("1,-1,2", 4), 1) << "the list ends at the first entry that names no GPU";
  EXPECT_EQ(count_visible_gpus("0,7", 4), 1);
  EXPECT_EQ(count_visible_gpus("0", 0), 0);
}

TEST(VisibleGpus, AreOneOfTheMigInstances) {
  EXPECT_EQ(count_visible_gpus("MIG-8932f937,MIG-7f1c", 1), 1);
  EXPECT_EQ(count_visible_gpus("MIG-GPU-8932f937/1/0", 4), 1);
  EXPECT_EQ(count_visible_gpus("GPU-8932f937,MIG-7f1c", 2), 1) << "CUDA shows GPUs or an instance, and not both";
}

TEST(RankDevices, SendValuesThroughTheHostIfTheDevicesCannotReadEachOther) {
  const DeviceId gpu{DeviceKind::cuda, 0};
  const DeviceId cpu{DeviceKind::cpu, 0};
  RankDevices devices({gpu, gpu, cpu, cpu, gpu}, {{0, 2, 0, 3}, {1, 2, 3, 2}});
  EXPECT_FALSE(devices.go_through_host(0, 1));
  EXPECT_FALSE(devices.go_through_host(2, 0)) << "a GPU reads the memory of the host";
  EXPECT_TRUE(devices.go_through_host(0, 2));
  EXPECT_FALSE(devices.go_through_host(2, 3)) << "nodes send each other memory of the host";
  EXPECT_TRUE(devices.go_through_host(0, 4));
  EXPECT_TRUE(devices.go_through_host(3, 0));
  devices.note_closed_to_peers(0);
  EXPECT_TRUE(devices.go_through_host(0, 1));
  EXPECT_FALSE(devices.go_through_host(1, 0));
  EXPECT_FALSE(devices.go_through_host(2, 0));
}

}  // namespace
}  // namespace syncrun::detail

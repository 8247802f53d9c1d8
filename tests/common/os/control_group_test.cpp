// Control groups as the kernel shows them. The tests write such files to a folder of their own.

#include "common/os/control_group.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <filesystem>

#include "tests/support/temporary_folder.hpp"

namespace syncrun::detail {
namespace {

namespace fs = std::filesystem;

class ControlGroups : public testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((folder_ / file).parent_path());
    write_text(folder_ / file, text);
  }
  int cores() const { return os::cores_granted({.membership = folder_ / "membership", .groups = folder_ / "groups"}); }

 private:
  TemporaryFolder folder_;
};

TEST_F(ControlGroups, WithoutAQuotaGrantAllCores) {
  EXPECT_EQ(cores(), INT_MAX);
  put("membership", "3:cpu,cpuacct:/\n0::/job\n");
  put("groups/job/cpu.max", "max 100000\n");
  put("groups/cpu/cpu.cfs_quota_us", "-1\n");
  put("groups/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), INT_MAX);
}

TEST_F(ControlGroups, GrantAStartedCoreAsAWholeOne) {
  put("membership", "0::/job\n");
  for (const auto& [text, granted] : {std::pair("200000 100000\n", 2), {"250000 100000\n", 3}, {"1000 100000\n", 1}}) {
    put("groups/job/cpu.max", text);
    EXPECT_EQ(cores(), granted) << text;
  }
}

TEST_F(ControlGroups, GrantWhatTheSmallestOfNestedGroupsGrants) {
  put("membership", "0::/slice/job/step\n");
  put("groups/slice/cpu.max", "300000 100000\n");
  put("groups/slice/job/cpu.max", "max 100000\n");
  put("groups/slice/job/step/cpu.max", "800000 100000\n");
  EXPECT_EQ(cores(), 3);
  put("groups/slice/job/cpu.max", "200000 100000\n");
  EXPECT_EQ(cores(), 2);
}

TEST_F(ControlGroups, OfVersion1ShareAFolderWithOtherControllers) {
  put("membership", "5:cpuset:/job\n4:cpu,cpuacct:/job\n");
  put("groups/cpu/job/cpu.cfs_quota_us", "150000\n");
  put("groups/cpu/job/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(cores(), 3);
}

TEST_F(ControlGroups, OfAContainerAreMountedAsTheRoot) {
  put("membership", "4:cpu:/outside/of/the/container\n");
  put("groups/cpu/cpu.cfs_quota_us", "400000\n");
  put("groups/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 4);
}

}  // namespace
}  // namespace syncrun::detail

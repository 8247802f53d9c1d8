// OomWatch reads the kernel's files about out-of-memory kills. The tests write such files to a folder of their own.

#include "common/os/oom_watch.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.hpp"

namespace syncrun::detail {
namespace {

namespace fs = std::filesystem;

class OomWatchTest : public testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((folder_ / file).parent_path());
    write_text(folder_ / file, text);
  }
  os::OomWatch watch() const {
    return os::OomWatch(
        {.membership = folder_ / "membership", .groups = folder_ / "groups", .machine = folder_ / "vmstat"});
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(OomWatchTest, SeesAKillInTheGroupOfVersion2) {
  put("membership", "0::/job/one\n");
  put("groups/job/one/memory.events", "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n");
  put("groups/job/one/memory.max", "1000000\n");
  put("groups/job/one/memory.current", "600000\n");
  const os::OomWatch oom = watch();
  EXPECT_EQ(oom.describe_kill(), "") << "kills of before are not this session's";
  put("groups/job/one/memory.events", "low 0\nhigh 0\nmax 19\noom 5\noom_kill 4\noom_group_kill 0\n");
  EXPECT_EQ(oom.describe_kill(),
            ", probably by the out-of-memory killer: the control group's limit is 1000000 bytes, and 600000 are in use "
            "now");
}

TEST_F(OomWatchTest, SeesAKillInTheMemoryGroupOfVersion1) {
  put("membership", "9:name=systemd:/\n4:memory:/job\n0::/\n");
  put("groups/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  put("groups/memory/job/memory.limit_in_bytes", "2000\n");
  put("groups/memory/job/memory.usage_in_bytes", "1999\n");
  const os::OomWatch oom = watch();
  EXPECT_EQ(oom.describe_kill(), "");
  put("groups/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_EQ(oom.describe_kill(),
            ", probably by the out-of-memory killer: the control group's limit is 2000 bytes, and 1999 are in use now");
}

TEST_F(OomWatchTest, LooksWhereAContainerHasItsOwnGroup) {
  put("membership", "0::/outside/of/the/container\n");
  put("groups/memory.events", "oom_kill 0\n");
  put("groups/memory.max", "5000\n");
  const os::OomWatch oom = watch();
  put("groups/memory.events", "oom_kill 1\n");
  EXPECT_EQ(oom.describe_kill(), ", probably by the out-of-memory killer: the control group's limit is 5000 bytes");
}

TEST_F(OomWatchTest, NamesTheLimitOfTheGroupThatHasOne) {
  put("membership", "0::/pod/container\n");
  put("groups/pod/memory.max", "7000\n");
  put("groups/pod/memory.current", "6999\n");
  put("groups/pod/container/memory.events", "oom_kill 0\n");
  put("groups/pod/container/memory.max", "max\n");
  const os::OomWatch oom = watch();
  put("groups/pod/container/memory.events", "oom_kill 1\n");
  EXPECT_EQ(oom.describe_kill(),
            ", probably by the out-of-memory killer: the control group's limit is 7000 bytes, and 6999 are in use now");
}

TEST_F(OomWatchTest, KnowsTheNumberThatIsNoLimitInVersion1) {
  put("membership", "4:memory:/job\n");
  put("groups/memory/job/memory.oom_control", "oom_kill 0\n");
  put("groups/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  const os::OomWatch oom = watch();
  put("groups/memory/job/memory.oom_control", "oom_kill 1\n");
  EXPECT_EQ(oom.describe_kill(), ", probably by the out-of-memory killer: the machine's memory was used up");
}

TEST_F(OomWatchTest, OfAGroupWithoutALimitIsTheMachines) {
  put("membership", "0::/job\n");
  put("groups/job/memory.events", "oom_kill 0\n");
  put("groups/job/memory.max", "max\n");
  const os::OomWatch oom = watch();
  put("groups/job/memory.events", "oom_kill 1\n");
  EXPECT_EQ(oom.describe_kill(), ", probably by the out-of-memory killer: the machine's memory was used up");
}

TEST_F(OomWatchTest, CountsTheMachinesKillsWithoutAGroup) {
  put("membership", "1:cpu:/\n");
  put("vmstat", "nr_free_pages 77\noom_kill 8\n");
  const os::OomWatch oom = watch();
  EXPECT_EQ(oom.describe_kill(), "");
  put("vmstat", "nr_free_pages 77\noom_kill 9\n");
  EXPECT_EQ(oom.describe_kill(), ", probably by the out-of-memory killer: the machine's memory was used up");
}

TEST_F(OomWatchTest, SaysNothingWhereNobodyCounts) {
  const os::OomWatch oom = watch();
  EXPECT_EQ(oom.describe_kill(), "");
  put("membership", "0::/job\nnonsense\n");
  put("groups/job/memory.events", "oom_kill many\n");
  EXPECT_EQ(watch().describe_kill(), "");
}

}  // namespace
}  // namespace syncrun::detail

// The kernel kills a worker because its control group has no memory left. The verdict says so.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/fault/matrix/matrix.hpp"

namespace syncrun::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

constexpr std::int64_t kLimitBytes = std::int64_t{96} << 20U;

bool put(const fs::path& file, const std::string& text) {
  std::ofstream stream(file);
  stream << text << std::flush;
  return stream.good();
}

std::string get(const fs::path& file) {
  std::string text;
  std::getline(std::ifstream(file), text);
  return text;
}

/// A control group with little memory below that of this process. is_there() is false if the machine does not
/// allow it.
class SmallGroup {
 public:
  SmallGroup() {
    std::ifstream membership("/proc/self/cgroup");
    for (std::string line; std::getline(membership, line);) {
      const std::string path = line.substr(line.find(':', line.find(':') + 1) + 1);
      if (line.find(":memory:") != std::string::npos) make("/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes");
      if (line.starts_with("0::") && !is_there_) make("/sys/fs/cgroup" + path, "memory.max");
    }
  }
  ~SmallGroup() {
    if (folder_.empty()) return;
    static_cast<void>(eventually([&] { return ::rmdir(folder_.c_str()) == 0 || errno == ENOENT; }));
  }
  SmallGroup(const SmallGroup&) = delete;
  SmallGroup& operator=(const SmallGroup&) = delete;
  bool is_there() const { return is_there_; }
  std::string processes() const { return folder_ / "cgroup.procs"; }

 private:
  void make(const fs::path& above, const char* limit) {
    const fs::path folder = above / ("syncrun-test-" + std::to_string(::getpid()));
    std::error_code refused;
    if (!fs::create_directory(folder, refused)) return;
    folder_ = folder;
    put(folder / "memory.swap.max", "0");  // v2 only. With v1, if the machine has swap, the test takes longer
    is_there_ = fs::exists(folder / limit) && put(folder / limit, std::to_string(kLimitBytes)) &&
                get(folder / limit) == std::to_string(kLimitBytes);
    if (!is_there_) ::rmdir(folder.c_str());
    if (!is_there_) folder_.clear();
  }
  fs::path folder_;
  bool is_there_ = false;
};

TEST(OutOfMemory, KillIsSaidToBeOne) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the address sanitizer's own memory is more than the limit of this test";
#endif
  const SmallGroup group;
  if (!group.is_there()) GTEST_SKIP() << "no control group with a memory limit can be made here";
  CommandRun run({"-c", "echo $$ > \"$0\" && exec \"$@\"", group.processes(), SYNCRUN_COMMAND, "-n", "2", "--quiet",
                  SYNCRUN_MATRIX_PROGRAM, "20000", "5000", "eat"},
                 {}, "/bin/sh");
  EXPECT_EQ(run.exit_code(), 1) << run.errors();
  EXPECT_TRUE(run.nothing_remains());
  EXPECT_THAT(run.errors(),
              AllOf(HasSubstr("syncrun: rank 1 (cpu1, pid "),
                    HasSubstr(") was lost in call 'eat' (phase function): killed by SIGKILL (Killed), probably by the "
                              "out-of-memory killer: the control group's limit is " +
                              std::to_string(kLimitBytes) + " bytes, and ")));
}

TEST(OutOfMemory, IsNotWhatEveryKillIs) {
  const Variable fault("SYNCRUN_FAULT", "rank=1,phase=function,call=2,way=kill");
  CommandRun run({"-n", "2", "--quiet", SYNCRUN_MATRIX_PROGRAM, "20000", "5000"});
  EXPECT_EQ(run.exit_code(), 1);
  EXPECT_THAT(run.errors(), HasSubstr("killed by SIGKILL (Killed)\n"));
}

}  // namespace
}  // namespace syncrun::test

#include "tests/fault/leak_check.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "tests/fault/scene.hpp"

namespace syncrun::test {

namespace fs = std::filesystem;

namespace {
// Workers inherit this variable. Its value says which test process they belong to.
constexpr const char* kMark = "SYNCRUN_FAULT_TEST";
}  // namespace

std::set<std::string> open_descriptors() {
  std::set<std::string> descriptors;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = fs::read_symlink(entry.path(), gone);
    // Leaves out the descriptor of the listing itself, which is closed when it is read here.
    std::string name = target.string();
    // The log of ctest is an inherited descriptor. Another ctest in the same build folder, which some tests start, replaces
    // the file.
    constexpr std::string_view kDeleted = " (deleted)";
    if (name.ends_with(kDeleted)) name.resize(name.size() - kDeleted.size());
    if (!gone && name.find("/fd") == std::string::npos) {
      descriptors.insert(entry.path().filename().string() + " -> " + name);
    }
  }
  return descriptors;
}

int count_threads() {
  return static_cast<int>(std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator()));
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

std::set<std::string> named_shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    // Other tests, which run at the same time, keep files in folders of this name (TemporaryFolder).
    if (name.starts_with("syncrun-test-")) continue;
    if (name.find("syncrun") != std::string::npos || name.starts_with("sem.")) names.insert(name);
  }
  return names;
}

LeakCheck::LeakCheck() { ::setenv(kMark, std::to_string(::getpid()).c_str(), 1); }

void LeakCheck::OnTestStart(const testing::TestInfo&) { descriptors_ = open_descriptors(); }

void LeakCheck::OnTestEnd(const testing::TestInfo&) {
  const std::string mark = kMark + ("=" + std::to_string(::getpid()));
  EXPECT_TRUE(eventually([&] { return processes_with(mark).empty(); })) << "the test leaves processes behind";
  EXPECT_FALSE(has_children()) << "the test leaves children behind";
  EXPECT_EQ(open_descriptors(), descriptors_) << "the test leaves descriptors open";
  EXPECT_TRUE(eventually([] { return count_threads() == 1; })) << "the test leaves threads behind";
  EXPECT_EQ(named_shared_memory(), std::set<std::string>()) << "the test leaves named shared memory behind";
}

}  // namespace syncrun::test

// What a reader notices of a save that removes the checkpoint, without sessions.

#include "master/checkpoint/checkpoint_folder.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>

#include "common/arrays/array_file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

namespace fs = std::filesystem;
using namespace detail::master::checkpoint;

constexpr int kNoFilters = 77;

void save(const fs::path& run) {
  CheckpointWriter writer(run);
  detail::arrays::write_file(writer.folder(), kManifest, "", {});
  writer.commit();
}

std::string no_problem(const detail::arrays::Folder&) { return {}; }

TEST(LatestFolder, IsReplacedByTheNextSave) {
  const TemporaryFolder folder;
  save(folder / "run");
  const LatestFolder latest(folder / "run", no_problem);
  EXPECT_FALSE(latest.is_replaced());
  save(folder / "run");
  EXPECT_TRUE(latest.is_replaced());
}

/// Without locks, a save that another one has overtaken sets the link back for a moment. The folder to which it leads may
/// be half removed then.
TEST(LatestFolder, IsReplacedOnceASaveHasTakenItsNameAlthoughTheLinkStays) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  save(run);
  const LatestFolder latest(run, no_problem);
  const fs::path own = latest.own_path();
  fs::rename(own, run / "removed");
  EXPECT_TRUE(latest.is_replaced());
  fs::copy(run / "removed", own);
  EXPECT_TRUE(latest.is_replaced()) << "another folder has the name";
}

/// From now on, this process cannot remove files.
void refuse_removals() {
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unlinkat, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(kNoFilters);
}

/// So nobody finds half of it under that name.
TEST(CheckpointWriter, TakesTheNameOfAnOlderCheckpointBeforeItsFiles) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  save(run);
  const fs::path older = fs::canonical(run / "latest");
  const pid_t child = ::fork();
  if (child == 0) {
    refuse_removals();
    save(run);
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilters) GTEST_SKIP() << "this machine has no system call filters";
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(fs::exists(older));
  save(run);
  EXPECT_EQ(std::distance(fs::directory_iterator(run), {}), 2) << "the link and one folder";
}

}  // namespace
}  // namespace syncrun::test

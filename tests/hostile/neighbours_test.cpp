// Other jobs and users on the same machine: many jobs run at once, and another user tries to read the memory of a
// session.

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <sstream>

#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

TEST(FiftyJobs, AtOnceDoNotInterfereAlsoIfAnotherIsKilled) {
  constexpr long long kJobs = 50;
  std::vector<std::unique_ptr<OddRun>> jobs;
  for (long long i = 0; i < kJobs; ++i) {
    const Front front = i % 2 == 0 ? Front::nothing : Front::syncrun;
    jobs.push_back(std::make_unique<OddRun>(front, Arguments{"add", std::to_string(100'000 + i)}));
  }
  const TemporaryFolder folder;
  OddRun victim(Front::nothing, {"hold", folder.at("go")});
  ASSERT_TRUE(victim.prints("ready")) << victim.errors();
  victim.send(SIGKILL);
  victim.expect_end(1000 + SIGKILL);
  for (long long i = 0; i < kJobs; ++i) {
    OddRun& job = *jobs[static_cast<std::size_t>(i)];
    job.expect_end(0);
    EXPECT_EQ(job.output(), sum_of(100'000 + i));
  }
}

/// Returns the ways in which this process has got access to the other one. The system must refuse each way.
std::vector<std::string> ways_into(int pid) {
  std::vector<std::string> open;
  const std::string process = std::string("/proc/").append(std::to_string(pid));
  const auto tries = [&](const std::string& file, int flags) {
    const int fd = ::open((process + file).c_str(), flags | O_CLOEXEC);
    if (fd < 0) return;
    open.push_back(file);
    ::close(fd);
  };
  for (int fd = 0; fd < 64; ++fd) {
    const std::string file = std::string("/fd/").append(std::to_string(fd));
    tries(file, O_RDONLY);
    tries(file, O_RDWR);
  }
  tries("/fd", O_RDONLY | O_DIRECTORY);
  tries("/map_files", O_RDONLY | O_DIRECTORY);
  tries("/mem", O_RDONLY);
  tries("/mem", O_RDWR);
  tries("/environ", O_RDONLY);
  tries("/root", O_RDONLY);
  if (::ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) open.emplace_back("ptrace");
  char byte = 0;
  iovec here{&byte, 1};
  iovec there{&byte, 1};  // any address: the kernel checks the permission first
  errno = 0;
  if (::process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) open.emplace_back("process_vm_readv");
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd >= 0 && ::syscall(SYS_pidfd_getfd, pidfd, 3, 0) >= 0) open.emplace_back("pidfd_getfd");
  if (::kill(pid, 0) == 0) open.emplace_back("kill");
  return open;
}

std::vector<int> pids_in(const std::string& ready_line) {
  std::istringstream words(ready_line);
  std::string ready;
  words >> ready;
  std::vector<int> pids;
  for (int pid = 0; words >> pid;) pids.push_back(pid);
  return pids;
}

TEST(SecondUser, CannotReadOrAttachToTheSessionsProcesses) {
  if (!can_become_users()) GTEST_SKIP() << "only root can become two users";
  const TemporaryFolder folder(TemporaryFolder::Access::everyone);
  OddRun run = run_after([] { become_user(first_stranger()); }, Front::nothing, {"hold", folder.at("go")});
  ASSERT_TRUE(run.prints("\n")) << run.errors();
  const auto pids = pids_in(run.output());
  ASSERT_EQ(pids.size(), 3) << run.output();
  for (const int pid : pids) {
    const auto finds_a_way = [&](uid_t user) {
      return !succeeds([=] {
        become_user(user);
        require(ways_into(pid).empty());
      });
    };
    EXPECT_FALSE(finds_a_way(second_stranger()));
    EXPECT_TRUE(finds_a_way(first_stranger())) << "the owner can: what is tried would work";
  }
  write_text(folder.at("go"), "");
  run.expect_end(0);
}

}  // namespace
}  // namespace syncrun::test

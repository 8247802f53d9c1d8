// System calls that a sandbox refuses. The error names the system call.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <span>
#include <string>

#include "tests/hostile/surroundings.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;

void apply_filter(std::span<sock_filter> program) {
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  require(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

/// From now on, the kernel refuses this system call (EPERM) to this process and its children if its first argument is
/// `first`.
void refuse(int call, int first) {
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(first), 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  apply_filter(program);
}

/// From now on, pidfds do not exist for this process and its children, as under Valgrind.
void take_pidfds_away() {
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  apply_filter(program);
}

class Refusal : public OnBothFronts {
 protected:
  void SetUp() override {
    if (!succeeds([] { refuse(SYS_setpgid, 0); })) GTEST_SKIP() << "this machine has no system call filters";
  }
};
INSTANTIATE_ON_BOTH_FRONTS(Refusal);

TEST_P(Refusal, OfAProcessGroupIsNamed) {
  OddRun run = run_after([] { refuse(SYS_setpgid, 0); }, GetParam(), {"add"});
  run.expect_end(1);
  EXPECT_THAT(run.last_error_line(), HasSubstr("cannot start /proc/self/exe: the system refuses its process "
                                               "setpgid(0, 0): Operation not permitted"));
}

TEST_P(Refusal, OfADeathSignalIsNamed) {
  OddRun run = run_after([] { refuse(SYS_prctl, PR_SET_PDEATHSIG); }, GetParam(), {"add"});
  run.expect_end(GetParam() == Front::nothing ? 1 : 126);
  EXPECT_THAT(run.last_error_line(),
              HasSubstr("the system refuses its process prctl(PR_SET_PDEATHSIG): Operation not permitted"));
}

TEST_P(Refusal, OfPidfdsHidesNoDeath) {
  expect_works_after(take_pidfds_away);
  OddRun dies = run_after(take_pidfds_away, GetParam(), {"die", std::to_string(SIGKILL)});
  dies.expect_end(1);
  EXPECT_THAT(dies.errors(), HasSubstr("in call 'die_on_rank_1' (phase function): killed by SIGKILL (Killed)"));
}

}  // namespace
}  // namespace syncrun::test

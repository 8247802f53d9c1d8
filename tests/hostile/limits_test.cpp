// Limits of the machine, the control group, the user and the process. The program either works, or it says which limit
// it has reached and what to do. Nothing hangs or is left behind.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>

#include "common/os/control_group.hpp"
#include "common/os/file_descriptor.hpp"
#include "tests/hostile/surroundings.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

constexpr rlim_t kKiB = 1024;
constexpr rlim_t kMiB = 1024 * kKiB;

#if defined(SYNCRUN_ADDRESS_SANITIZER)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
constexpr const char* kTooLarge = "the address sanitizer's own mappings are larger than the limit";

void expect_refused(OddRun& run, const std::string& words) {
  EXPECT_THAT(run.exit_code(), AnyOf(Eq(1), Eq(126))) << run.output();
  EXPECT_THAT(run.errors(), HasSubstr(words));
  EXPECT_TRUE(run.nothing_remains());
}

class Limits : public OnBothFronts {
 protected:
  /// Runs the program with this soft and hard limit.
  OddRun run_within(int resource, rlim_t value, const Arguments& arguments) {
    return run_after([=] { limit(resource, value); }, GetParam(), arguments);
  }
  /// Runs `add` with this number of workers and this limit of open files.
  OddRun run_with_files(int workers, rlim_t files) {
    const std::string count = std::to_string(workers);
    return run_after(
        [=] {
          ::setenv("SYNCRUN_NPROC_PER_NODE", count.c_str(), 1);
          limit(RLIMIT_NOFILE, files);
        },
        GetParam(), {"add"});
  }
};
INSTANTIATE_ON_BOTH_FRONTS(Limits);

// ---- shared memory ----------------------------------------------------------------------------------------------

TEST_P(Limits, OfDevShmAreNotThoseOfData) {
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount a small /dev/shm";
  for (const std::string options : {"size=1m", "size=64m"})
    expect_works_after([=] { mount_over("/dev/shm", options); }, {"add", "268435456"}, sum_of(268435456));
}

// ---- memory -----------------------------------------------------------------------------------------------------

/// Replaces the files of the control group (version 2). The group then has 200 MiB left.
void enter_a_full_group() {
  mount_over("/sys/fs/cgroup");
  write_text("/sys/fs/cgroup/memory.max", "314572800\n");
  write_text("/sys/fs/cgroup/memory.current", "104857600\n");
  write_text("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 0\n");
}

bool is_in_a_group_of_version_2() { return ("\n" + text_of("/proc/self/cgroup")).find("\n0::") != std::string::npos; }

TEST_P(Limits, OfAControlGroupIsMetBeforeTheKernelKillsAndTheSessionGoesOn) {
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount over /sys/fs/cgroup";
  if (!is_in_a_group_of_version_2()) GTEST_SKIP() << "this machine has no control groups of version 2";
  OddRun run = run_after(enter_a_full_group, GetParam(), {"want", "150", "250", "150"});
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_THAT(run.output(),
              MatchesRegex("157286400\nsystem: a Data of shape \\[262144000\\] requires 262144000 bytes of shared "
                           "memory; 209715200 bytes are available on this machine or in this control group "
                           ".*\n157286400\n"));
}

/// A control group within that of the test. Gone with the object, when its processes have ended.
class MemoryGroup {
 public:
  explicit MemoryGroup(rlim_t bytes) {
    for (const auto& [folder, is_v2] : detail::os::control_groups("memory")) {
      folder_ = folder + "/syncrun-test-" + std::to_string(::getpid());
      if (::mkdir(folder_.c_str(), 0755) != 0) continue;
      const std::string limit = folder_ + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes");
      // The kernel makes the files of a group. Without one, this is an ordinary folder.
      exists_ = ::access(limit.c_str(), W_OK) == 0 && static_cast<bool>(std::ofstream(limit) << bytes << std::flush);
      if (exists_) return;
      ::rmdir(folder_.c_str());
    }
  }
  ~MemoryGroup() { ::rmdir(folder_.c_str()); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool exists() const noexcept { return exists_; }
  /// For children.
  void enter() const { require(static_cast<bool>(std::ofstream(folder_ + "/cgroup.procs") << 0 << std::flush)); }

 private:
  std::string folder_;
  bool exists_ = false;
};

TEST_P(Limits, OfAControlGroupKillAWorkerAlthoughTheMasterHasFilledIt) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  const MemoryGroup group(400 * kMiB);
  if (!group.exists()) GTEST_SKIP() << "this machine lets nobody make a control group";
  OddRun run = run_after([&] { group.enter(); }, GetParam(), {"fill", "300", "150"});
  run.expect_end(1);
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr("was lost in call 'fill' (phase function): killed by SIGKILL (Killed), probably by the out-of-memory "
                "killer: the control group's limit is 419430400 bytes"));
}

TEST(MasterWithoutMemory, IsSaidToHaveNone) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  const MemoryGroup group(400 * kMiB);
  if (!group.exists()) GTEST_SKIP() << "this machine lets nobody make a control group";
  OddRun run = run_after([&] { group.enter(); }, Front::syncrun, {"fill", "1", "600", "the master"});
  EXPECT_EQ(run.exit_code(), 128 + SIGKILL) << run.errors();
  EXPECT_THAT(run.last_error_line(),
              MatchesRegex("syncrun: the master \\(pid [0-9]+\\) was killed by SIGKILL \\(Killed\\), probably by the "
                           "out-of-memory killer: the control group's limit is 419430400 bytes.*"));
}

TEST_P(Limits, OfProcessorTimeDecideHowManyWorkersThereAre) {
  if (!can_mount()) GTEST_SKIP() << "this machine lets nobody mount over /sys/fs/cgroup";
  if (!is_in_a_group_of_version_2()) GTEST_SKIP() << "this machine has no control groups of version 2";
  expect_works_after(
      [] {
        ::setenv("SYNCRUN_NPROC_PER_NODE", "cpu", 1);
        mount_over("/sys/fs/cgroup");
        write_text("/sys/fs/cgroup/cpu.max", "100000 100000\n");  // one core
      },
      {"add"}, "1 workers add up 1048576\n");
}

// ---- core files -------------------------------------------------------------------------------------------------

/// Workers that crash write core files of limited size into the folder, under the name "core".
class CoreFile : public testing::Test {
 protected:
  void SetUp() override {
    if (kIsSanitized) GTEST_SKIP() << "the address sanitizer turns core files off";
    if (text_of("/proc/sys/kernel/core_pattern") != "core\n" || text_of("/proc/sys/kernel/core_uses_pid") != "0\n")
      GTEST_SKIP() << "this machine writes core files under other names";
  }
  /// Rank 1 crashes while there are 64 MiB of data in shared memory.
  std::unique_ptr<OddRun> run_that_crashes(const std::string& dumps) {
    Start start;
    start.in_child = [this, dumps] {
      require(::chdir(folder_.path().c_str()) == 0);
      ::setenv("SYNCRUN_DUMP_SHARED", dumps.c_str(), 1);
      limit(RLIMIT_CORE, 256 * kMiB);  // without the limit, a core file of the whole reservation would fill the disk
    };
    return std::make_unique<OddRun>(Front::syncrun, Arguments{"die", std::to_string(SIGSEGV), "64"}, start);
  }
  rlim_t bytes_on_disk() const {
    struct stat status {};
    EXPECT_EQ(::stat(path_.c_str(), &status), 0) << "there is no core file";
    return static_cast<rlim_t>(status.st_blocks) * 512;
  }
  static void expect_verdict(OddRun& run, const std::string& words) {
    run.expect_end(1);
    EXPECT_THAT(run.errors(), HasSubstr("killed by SIGSEGV (Segmentation fault)" + words));
    EXPECT_THAT(run.errors(), AnyOf(HasSubstr("\n    #0 "), HasSubstr("\n    no stack: ")));
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.at("core");
};

TEST_F(CoreFile, LeavesSharedMemoryOut) {
  const auto run = run_that_crashes("off");
  expect_verdict(*run, "\n  [rank 1] half a line");
  EXPECT_LT(bytes_on_disk(), 32 * kMiB);
}

TEST_F(CoreFile, ContainsTheUsedPartOfSharedMemoryIfTheUserWantsIt) {
  const auto run = run_that_crashes("on");
  expect_verdict(*run, "\n  [rank 1] half a line");
  EXPECT_GE(bytes_on_disk(), 64 * kMiB);
  EXPECT_LT(bytes_on_disk(), 128 * kMiB);
}

/// The kernel asks the test whether the core file may be opened, and gets no answer.
TEST_F(CoreFile, ThatTakesLongDoesNotHoldTheVerdictUp) {
  const detail::os::FileDescriptor asked(::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY));
  if (::fanotify_mark(asked.get(), FAN_MARK_ADD, FAN_OPEN_PERM | FAN_EVENT_ON_CHILD, AT_FDCWD,
                      folder_.path().c_str()) != 0)
    GTEST_SKIP() << "this machine lets nobody hold the opening of a file up";
  const auto run = run_that_crashes("off");
  expect_verdict(*run, "; its core file is cut off, because it was not complete after 5000 ms");
  EXPECT_THAT(run->errors(),
              HasSubstr("[rank 1] killed by SIGSEGV (Segmentation fault), and is writing a core file\n"));
}

TEST_P(Limits, OfAddressesLeavesLessToReserve) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  OddRun run = run_within(RLIMIT_AS, 3000 * kMiB, {"want", "256", "3000", "1"});
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_THAT(run.output(),
              MatchesRegex("268435456\nsystem: a Data of shape \\[3145728000\\] requires 3145728000 bytes of "
                           "shared memory; the segment has [0-9]+\n1048576\n"));
}

TEST_P(Limits, OfAddressesThatLeaveTooLittleAreNamed) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  OddRun run = run_within(RLIMIT_AS, 800 * kMiB, {"add"});
  expect_refused(run,
                 "cannot map 1073741824 bytes of shared memory (ulimit -v is 819200 KiB; a smaller "
                 "SYNCRUN_RESERVE_BYTES may do): Cannot allocate memory");
}

TEST_P(Limits, OfAddressesThatLeaveTooLittleCanBeMetByReservingLess) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  expect_works_after([] {
    ::setenv("SYNCRUN_RESERVE_BYTES", "134217728", 1);
    limit(RLIMIT_AS, 800 * kMiB);
  });
}

TEST_P(Limits, OfPrivateMemoryAreNamedByTheResultThatMeetsThem) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  OddRun run = run_within(RLIMIT_DATA, 100 * kMiB, {"want-results", "10", "256", "1"});
  EXPECT_EQ(run.exit_code(), 0) << run.errors();
  EXPECT_EQ(run.output(),
            "10485760\na result requires 268435456 bytes of this process's own memory (ulimit -v is unlimited, "
            "ulimit -d is 102400 KiB): Cannot allocate memory\n1048576\n");
}

TEST_P(Limits, OfPrivateMemoryThatLeaveNoRoomForAThreadAreNamedAndNotThatOfProcesses) {
  if (kIsSanitized) GTEST_SKIP() << kTooLarge;
  int working = 0;
  int refused = 0;
  for (rlim_t limit_kib = 2048; limit_kib <= 40 * 1024; limit_kib += 2048) {
    OddRun run = run_within(RLIMIT_DATA, limit_kib * kKiB, {"add"});
    if (run.exit_code() == 0) {
      ++working;
      continue;
    }
    ++refused;
    EXPECT_THAT(run.errors(), HasSubstr("ulimit -d is " + std::to_string(limit_kib) + " KiB"));
    EXPECT_THAT(run.errors(), Not(HasSubstr("ulimit -u")));
    EXPECT_TRUE(run.nothing_remains());
  }
  EXPECT_GT(working, 0);
  EXPECT_GT(refused, 0);
}

// ---- files and descriptors --------------------------------------------------------------------------------------

TEST_P(Limits, OfFileSizesThatSharedMemoryMeetsAreNamedAndDoNotKill) {
  OddRun run = run_within(RLIMIT_FSIZE, 500 * kMiB, {"add"});
  expect_refused(run,
                 "and the size of files is limited (ulimit -f is 512000 KiB; a smaller SYNCRUN_RESERVE_BYTES may do)");
}

TEST_P(Limits, OfFileSizesThatAreLargeEnoughLeaveLessToReserve) {
  expect_works_after([] { limit(RLIMIT_FSIZE, 3000 * kMiB); });
}

TEST_P(Limits, OfSixtyFourFilesAreEnoughForADozenWorkersAndNamedIfTheyAreTooFew) {
  OddRun dozen = run_with_files(12, 64);
  dozen.expect_end(0);
  EXPECT_EQ(dozen.output(), "12 workers add up 1048576\n");
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the undefined-behaviour sanitizer checks pointers through a pipe, for which there is no descriptor";
#endif
  OddRun run = run_with_files(60, 64);
  expect_refused(run, "Too many open files (ulimit -n is 64; raise it, or take fewer workers)");
}

TEST_P(Limits, OfAnyNumberOfFilesAreEnoughOrNamed) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the undefined-behaviour sanitizer checks pointers through a pipe, for which there is no descriptor";
#endif
  int working = 0;
  for (rlim_t files = 5; files <= 24; ++files) {
    OddRun run = run_with_files(2, files);
    const int code = run.exit_code();
    if (code == 0) ++working;
    // If there are not even enough descriptors for the loader, the loader reports it.
    else EXPECT_THAT(run.errors(), HasSubstr("Too many open files")) << files;
    EXPECT_TRUE(run.nothing_remains()) << files;
  }
  EXPECT_GT(working, 0);
}

// ---- processes --------------------------------------------------------------------------------------------------

TEST_P(Limits, OfAnyNumberOfProcessesAreEnoughOrNamed) {
#if defined(SYNCRUN_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the leak sanitizer requires a process of its own at every end, which the limit refuses";
#endif
  if (!can_become_users()) GTEST_SKIP() << "only root can become a user for whom the limit holds";
  int working = 0;
  for (rlim_t processes = 1; processes <= 12; ++processes) {
    OddRun run = run_after(
        [=] {
          become_user(first_stranger());
          limit(RLIMIT_NPROC, processes);
        },
        GetParam(), {"add"});
    const int code = run.exit_code();
    if (code == 0) ++working;
    else EXPECT_THAT(run.errors(), HasSubstr("(ulimit -u is " + std::to_string(processes))) << processes;
    EXPECT_TRUE(run.nothing_remains()) << processes;
  }
  EXPECT_GT(working, 0);
}

// ---- limits that do not matter ----------------------------------------------------------------------------------

TEST_P(Limits, ThatDoNotMatterAreNotFelt) {
  struct Harmless {
    const char* name;
    int resource;
    rlim_t value;
  };
  for (const Harmless& given :
       {Harmless{"locked memory", RLIMIT_MEMLOCK, 0}, Harmless{"cores", RLIMIT_CORE, 0},
        Harmless{"small stack", RLIMIT_STACK, 256 * kKiB}, Harmless{"endless stack", RLIMIT_STACK, RLIM_INFINITY},
        Harmless{"queues", RLIMIT_MSGQUEUE, 0}, Harmless{"signals", RLIMIT_SIGPENDING, 0},
        Harmless{"priorities", RLIMIT_RTPRIO, 0}}) {
    SCOPED_TRACE(given.name);
    rlimit before{};
    ::getrlimit(static_cast<__rlimit_resource_t>(given.resource), &before);
    if (given.value > before.rlim_max && ::geteuid() != 0) continue;  // only root can raise this limit
    expect_works_after([=] { limit(given.resource, given.value); });
  }
}

}  // namespace
}  // namespace syncrun::test

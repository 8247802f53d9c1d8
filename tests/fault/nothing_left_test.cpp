// Sessions leave nothing behind in the master: no descriptors, threads, children or mappings. Also: what forks and
// other actions of the master do to sessions.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/fault/leak_check.hpp"
#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

class ManySessions : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, ManySessions, testing::Values(1, 3), testing::PrintToStringParamName());

TEST_P(ManySessions, LeaveNothingInTheMaster) {
  std::set<std::string> descriptors;
  std::size_t mappings = 0;
  for (int round = 0; round < 50; ++round) {
    // In turn, the session is closed, destroyed without close, lost, or has a failed call.
    Session session(workers(GetParam()));
    const auto f = session.function(+[](int action) {
      if (action == 2) die(Death::kill);
      if (action == 3) throw std::runtime_error("no");
    });
    const auto data = session.data<float, 1>({100'000});
    if (round % 4 < 2) f(0);
    else EXPECT_ANY_THROW(f(round % 4));
    if (round % 4 == 0) session.close();
    if (round == 9) {
      descriptors = open_descriptors();
      mappings = count_mappings();
    }
    if (round == 49) {
      EXPECT_EQ(open_descriptors().size(), descriptors.size());
      EXPECT_LE(count_mappings(), mappings + 20);
    }
  }
  EXPECT_EQ(count_threads(), 1);
  EXPECT_FALSE(has_children());
}

std::set<std::string> open_files_of(int pid) {
  std::set<std::string> targets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    targets.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  return targets;
}

TEST(Job, KeepsNothingInNamedMemoryOrTemporaryFiles) {
  const auto before = open_files_of(::getpid());  // files that the process which runs the tests has left open
  Session session(workers(2));
  const auto data = session.data<float, 1>({1'000'000});
  auto pids = session.worker_pids();
  pids.push_back(::getpid());
  for (const int pid : pids) {
    for (const auto& target : open_files_of(pid)) {
      if (before.contains(target)) continue;
      EXPECT_THAT(target, Not(HasSubstr("/dev/shm/")));
      EXPECT_THAT(target, Not(HasSubstr("/tmp/")));
    }
  }
  EXPECT_EQ(named_shared_memory(), std::set<std::string>());
}

TEST(Job, GivesWorkersNoDescriptorOfTheMasters) {
  const int kept = ::memfd_create("inherited on purpose", 0);
  Session session(workers(4));
  // A worker has only one socket, which leads to the master, and no descriptor of an epoll instance or of a process.
  for (const int pid : session.worker_pids()) {
    int others = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (target.find("socket:") != std::string::npos) ++others;
      EXPECT_THAT(target, Not(HasSubstr("[eventpoll]")));
      EXPECT_THAT(target, Not(HasSubstr("[pidfd]")));
    }
    EXPECT_EQ(others, 1) << "the socket to the master, and no other worker's";
  }
  session.close();
  ::close(kept);
}

TEST(ForkInTheMaster, ThatExitsLeavesTheSessionAlone) {
  Session session(workers(2));
  const auto f = session.function(+[] { return Sum<int>(1); });
  for (const bool runs_exit_handlers : {false, true}) {
    const int child = fork_when_quiet();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (runs_exit_handlers) std::exit(0);
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(f(), 2);
  }
  expect_usable(session);
  session.close();
}

TEST(ForkInTheMaster, ThatDestroysItsCopyLeavesTheSessionAlone) {
  auto session = std::make_unique<Session>(workers(2));
  const auto f = session->function(+[] { return Sum<int>(1); });
  auto data = std::optional(session->data(std::vector<int>(100'000, 7)));
  const int child = fork_when_quiet();
  ASSERT_GE(child, 0);
  if (child == 0) {
    data.reset();
    session.reset();
    const Session own(workers(1));  // the child may have a session of its own
    ::_exit(0);
  }
  int status = -1;
  ASSERT_TRUE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; })) << "the child hangs";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(f(), 2);
  EXPECT_EQ(data->view()[99'999], 7);
  session->close();
}

TEST(ForkInTheMaster, ThatUsesItsCopyIsRefused) {
  Session session(workers(2));
  const auto f = session.function(+[] { return Sum<int>(1); });
  const int child = fork_when_quiet();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int refused = 0;
    for (const std::function<void()>& use : {std::function<void()>([&] { session.close(); }),
                                             std::function<void()>([&] { session.data<float, 1>({4}); })}) {
      try {
        use();
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::usage) ++refused;
      }
    }
    ::_exit(refused);
  }
  int status = -1;
  const bool ended = eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; });
  EXPECT_TRUE(ended) << "the child hangs";
  if (!ended) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_EQ(f(), 2);
  session.close();
}

class IgnoredChildren : public testing::Test {
 protected:
  void SetUp() override { ::signal(SIGCHLD, SIG_IGN); }
  void TearDown() override { ::signal(SIGCHLD, SIG_DFL); }
};

TEST_F(IgnoredChildren, DoNotKeepASessionFromWorkingAndClosing) {
  Session session(workers(2));
  expect_usable(session);
  session.close();
}

TEST_F(IgnoredChildren, AreStillSeenWhenTheyDie) {
  Session session(workers(2));
  const Board board(session);
  const auto f = session.function(
      +[](CpuWorker& worker, BoardView board) {
        if (worker.rank() == 1) die(Death::kill, board);
      },
      "f");
  const Error error = error_of([&] { f(board.data()); });
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.failure().call, "f");
  EXPECT_LT(error.failure().master_released - board.time_of_death(), kErrorLimit);
  EXPECT_THAT(error.what(), Not(HasSubstr("exited with code 0"))) << "nobody knows how it ended";
  EXPECT_THAT(error.what(), HasSubstr("SIGCHLD"));
  expect_over(session, error);
}

TEST(ForeignChildren, AreNotReapedBySessions) {
  const int child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(9);
  {
    Session session(workers(2));
    expect_usable(session);
    session.close();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 9);
}

}  // namespace
}  // namespace syncrun::test

// What workers have of the master, and what forks and other actions of the master do to sessions. LeakCheck looks after
// each test for what it has left behind.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "tests/fault/scene.hpp"
#include "tests/fault/ways_to_die.hpp"

namespace syncrun::test {
namespace {

using testing::HasSubstr;
using testing::Not;

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

class ForkInTheMaster : public testing::Test {
 protected:
  /// Forks a child that does this, and returns its exit code.
  static int code_of_child(const std::function<int()>& act) {
    const int child = fork_when_quiet();
    if (child == 0) ::_exit(act());
    int status = -1;
    EXPECT_TRUE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; })) << "the child hangs";
    if (status == -1) ::kill(child, SIGKILL);
    if (status == -1) ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::unique_ptr<Session> session = std::make_unique<Session>(workers(2));
  Function<Sum<int>> f = session->function([] { return Sum<int>(1); });
};

TEST_F(ForkInTheMaster, ThatExitsLeavesTheSessionAlone) {
  EXPECT_EQ(code_of_child([] { return 0; }), 0);
  EXPECT_EQ(f(), 2);
  EXPECT_EQ(code_of_child([]() -> int { std::exit(0); }), 0) << "runs exit handlers";
  EXPECT_EQ(f(), 2);
  expect_usable(*session);
  session->close();
}

TEST_F(ForkInTheMaster, ThatDestroysItsCopyLeavesTheSessionAlone) {
  auto data = std::optional(session->data(std::vector<int>(100'000, 7)));
  const int code = code_of_child([&] {
    data.reset();
    session.reset();
    const Session own(workers(1));  // the child may have a session of its own
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(f(), 2);
  EXPECT_EQ(data->view()[99'999], 7);
  session->close();
}

TEST_F(ForkInTheMaster, ThatUsesItsCopyIsRefused) {
  const auto is_refused = [](const auto& use) {
    try {
      use();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage ? 1 : 0;
    }
    return 0;
  };
  const int refused = code_of_child(
      [&] { return is_refused([&] { session->close(); }) + is_refused([&] { session->data<float, 1>({4}); }); });
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(f(), 2);
  session->close();
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
      [](CpuWorker& worker, BoardView board) {
        if (worker.rank() == 1) die(Death::kill, board);
      },
      "f");
  const Error error = expect_error([&] { f(board.data()); }, ErrorKind::worker_lost);
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

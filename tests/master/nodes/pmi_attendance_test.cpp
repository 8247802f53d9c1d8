// The question to an engine with PMI-1, which a thread of the test plays.

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "master/nodes/mpi/engine_attendance.hpp"

namespace syncrun::detail {
namespace {

/// An engine with PMI-1, at the other end of PMI_FD. Node 1 has come from the host "n1", and node 2 has not.
class Engine {
 public:
  Engine() {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) != 0) std::abort();
    ::setenv("PMI_FD", std::to_string(ends_[0]).c_str(), 1);
    thread_ = std::thread([this] { serve(); });
  }
  ~Engine() {
    ::unsetenv("PMI_FD");
    ::shutdown(ends_[0], SHUT_RDWR);
    thread_.join();
    for (const int end : ends_) ::close(end);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int fd_of_node() const { return ends_[0]; }
  void answer(const std::string& line) const {
    if (::write(ends_[1], line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
  }

 private:
  void serve() const {
    std::string received;
    std::array<char, 256> bytes{};
    for (ssize_t count = 0; (count = ::read(ends_[1], bytes.data(), bytes.size())) > 0;) {
      received.append(bytes.data(), static_cast<std::size_t>(count));
      for (std::size_t end = 0; (end = received.find('\n')) != std::string::npos; received.erase(0, end + 1))
        answer_to(received.substr(0, end));
    }
  }
  void answer_to(const std::string& request) const {
    if (request.starts_with("cmd=publish_name")) answer("cmd=publish_result info=ok\n");
    else if (request.find("service=syncrun-node-1") != std::string::npos) answer("cmd=lookup_result info=ok port=n1\n");
    else answer("cmd=lookup_result info=unknown_service\n");
  }

  std::array<int, 2> ends_{};
  std::thread thread_;
};

/// A thread that waits in MPI for a line of the engine.
class Opener {
 public:
  explicit Opener(int fd) : thread_([this, fd] { await_line(fd); }) {
    while (!has_begun_) std::this_thread::yield();
  }
  ~Opener() {
    if (thread_.joinable()) thread_.join();
  }
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;
  pthread_t id() { return thread_.native_handle(); }
  std::string line() {
    thread_.join();
    return line_;
  }

 private:
  void await_line(int fd) {
    has_begun_ = true;
    for (char letter = 0; ::read(fd, &letter, 1) == 1 && letter != '\n';) line_ += letter;
  }
  std::atomic<bool> has_begun_ = false;
  std::string line_;
  std::thread thread_;
};

class PmiAttendance : public testing::Test {
 protected:
  void SetUp() override {
#if defined(SYNCRUN_THREAD_SANITIZER)
    GTEST_SKIP() << "the thread sanitizer holds a signal back while a thread waits in read()";
#endif
  }
};

TEST_F(PmiAttendance, TheThreadInMpiContinuesAfterTheQuestion) {
  const Engine engine;
  Opener opener(engine.fd_of_node());
  const auto attendance = master::nodes::mpi::ask_engine(0, 3, opener.id());
  engine.answer("cmd=barrier_out\n");
  EXPECT_EQ(opener.line(), "cmd=barrier_out");
  ASSERT_TRUE(attendance);
  EXPECT_EQ(attendance->has_come, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(attendance->hosts[1], "n1");
}

TEST_F(PmiAttendance, ASignalThatNobodyAwaitsStopsNoThread) {
  const Engine engine;
  Opener opener(engine.fd_of_node());
  ASSERT_TRUE(master::nodes::mpi::ask_engine(0, 2, opener.id()));
  ASSERT_EQ(::pthread_kill(opener.id(), SIGUSR2), 0);
  engine.answer("cmd=barrier_out\n");
  EXPECT_EQ(opener.line(), "cmd=barrier_out");
}

}  // namespace
}  // namespace syncrun::detail
